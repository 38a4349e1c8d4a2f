"""Loads one model after the other, as the worker of llama.cpp does, and prints what became of each: for many models in few processes."""

import sys

from nearfar.device.llama.worker import load
from nearfar.protocols import NearfarError


def main() -> None:
    """Load the models whose paths stand on standard input."""
    for line in sys.stdin:
        try:
            load({"path": line.strip(), "context_tokens": 64, "parallel": 1, "threads": 1})
            outcome = "loaded"
        except NearfarError as error:
            outcome = type(error).__name__
        sys.stdout.write(outcome + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
