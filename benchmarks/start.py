"""How long it takes until something happens: importing `Hybrid`, a task of the shipped model on the command line, the help.

    python benchmarks/start.py --json [--quick]

Times are of processor time, of the process and its children, and so hardly depend on what else the machine does; the least of several
runs, since whatever disturbs a run only adds to it.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence

_IMPORT = (sys.executable, "-c", "from nearfar import Hybrid")
_CLI = (sys.executable, "-m", "nearfar")
_TASK = (*_CLI, "run", "What is the city of the employer of Ines Falk?", "--near", "near", "--json")
_HELP = (*_CLI, "--help")


def cpu_seconds(command: Sequence[str], *, times: int) -> float:
    """Return the least processor time of several runs, children included. Raises `CalledProcessError` where one fails."""
    return round(min(_once(command) for _ in range(times)), 3)


def _once(command: Sequence[str]) -> float:
    before = os.times()
    with tempfile.TemporaryDirectory() as folder:  # no nearfar.toml of the folder that this is started in
        subprocess.run(command, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, check=True, timeout=60)
    after = os.times()
    return after.children_user + after.children_system - before.children_user - before.children_system


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print one line of JSON")
    parser.add_argument("--quick", action="store_true", help="fewer runs")
    options = parser.parse_args()
    times = 4 if options.quick else 10
    figures = {
        "import_cpu_s": cpu_seconds(_IMPORT, times=times),
        "run_cpu_s": cpu_seconds(_TASK, times=times),
        "help_cpu_s": cpu_seconds(_HELP, times=times),
    }
    print(json.dumps(figures) if options.json else "\n".join(f"{name:>14}  {value}" for name, value in figures.items()))


if __name__ == "__main__":
    main()
