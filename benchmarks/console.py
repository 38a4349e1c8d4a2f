"""What open pages of the console cost, and how soon they show what happens; all of it on loopback.

    python benchmarks/console.py --json [--quick]

A server with a scripted agent serves 50 tasks at once, without end. By turns, no page is open and 20 pages of runs are, which a process of
its own reads as a browser does.
* `event_ms_p95`: milliseconds from the moment at which a run is asked for to the moment at which an open page has it. Bar: 300 or less.
* `pages_cpu_share`: processor time of the server with 20 pages open, in addition to that without, as a share. Bar: 0.1 or less.
* `page_mb`: memory of the server for each open page. Bar: 5 or less.
* `page_kb_grown`: how much larger the list of runs has become on an open page after 10,000 events. Bar: 1 or less.
"""

import sys
from pathlib import Path
from typing import Final

# In place of the script's own folder, in which onnx.py would be taken for the library of that name.
sys.path.pop(0)
sys.path.insert(0, str(Path(__file__).parents[1]))
from benchmarks._parts import print_figures

PARTS: Final = ("live",)
"""Modules of `benchmarks.console_figures`."""

if __name__ == "__main__":
    print_figures("benchmarks.console_figures", PARTS, description="What open pages of the console cost.")
