"""What a gateway costs compared with LiteLLM's proxy, and how many devices it serves at once; all of it on loopback, with default settings.

    python benchmarks/gateway.py --json [--quick] [--only PART]

`beside` puts both in front of the same provider, in the same run, and asks them by turns. Both check a token.
* `streams_over_litellm`: streams of 100 tokens for each second of CPU time, the gateway's / LiteLLM's, where the provider sends as fast as
  it can. Bar: 5 or more. `..._streams_per_core_s`: the two numbers.
* `paced_streams_over_litellm`: the same where the provider sends 50 tokens a second, so that each token is an event of its own everywhere.
  `..._paced_streams_per_core`: how many such streams one core carries.
* `first_token_added_ms`: median time to the first token through the gateway, less that of asking the provider itself, one step at a time.
  Bar: 4 or less. `litellm_first_token_added_ms`: the same of LiteLLM.
* `..._mb`: memory of the process after all that.
LiteLLM comes from `make judges`. Without it, its figures are missing or null, and `litellm_missing` says why.

`fleet` is 1,024 devices, each with a token and a connection of its own.
* `idle_1000_mb`: memory that the gateway takes for 1,000 connections that do nothing. Bar: 25 or less.
* `fleet_served`: of 1,024 streams that begin at once, one from each device. Bar: all. `fleet_at_once`: how many were open at the provider
  together.
* `token_served`: of 256 streams of one token, over one connection. Bar: all. `token_at_once`: how many were open together.
* `open_files`: how many files a process may have open here, which bounds all of that.
"""

import sys
from pathlib import Path
from typing import Final

# In place of the script's own folder, in which onnx.py would be taken for the library of that name.
sys.path.pop(0)
sys.path.insert(0, str(Path(__file__).parents[1]))
from benchmarks._parts import print_figures

PARTS: Final = ("beside", "fleet")
"""Modules of `benchmarks.gateway_figures`."""

if __name__ == "__main__":
    print_figures("benchmarks.gateway_figures", PARTS, description="What a gateway costs, and how many devices it serves at once.")
