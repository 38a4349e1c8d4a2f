"""What the HTTP server adds to a turn, and how it compares with LiteLLM's proxy; all of it on loopback, with default settings.

    python benchmarks/faces.py --json [--quick]

A provider on loopback, in a process of its own, writes 20 tokens as fast as it can. `nearfar serve http` and LiteLLM's proxy (one worker)
stand in front of it, both check a token, and are asked by turns, as streams of chat completions.
* `first_byte_added_ms_p50`: median milliseconds to the first byte of an answer, less those to the first word of the same turn asked of a
  `Hybrid` in this process. Bar: 5 or less.
* `throughput_over_litellm`: answers per second over 64 connections, Nearfar's / LiteLLM's. Bar: 3 or more.
* `added_latency_over_litellm`: median milliseconds that each adds to a whole answer of the provider, one at a time, Nearfar's / LiteLLM's.
  Bar: 1/3 or less.
* `rss_over_litellm`: memory of the processes after that, Nearfar's / LiteLLM's. Bar: 1/3 or less.
LiteLLM comes from `make judges`. Without it, its figures are null, and `litellm_missing` says why.
"""

import sys
from pathlib import Path
from typing import Final

# In place of the script's own folder, in which onnx.py would be taken for the library of that name.
sys.path.pop(0)
sys.path.insert(0, str(Path(__file__).parents[1]))
from benchmarks._parts import print_figures

PARTS: Final = ("beside",)
"""Modules of `benchmarks.faces_figures`."""

if __name__ == "__main__":
    print_figures("benchmarks.faces_figures", PARTS, description="What the HTTP server adds, compared with LiteLLM's proxy.")
