"""Processes in the environment of one provider's SDK: one judges by its types (`sdk_worker.py`), one talks by it (`sdk_client.py`)."""

import json
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from scripts.judges import python_of

TYPES = Path(__file__).with_name("sdk_worker.py")
CLIENT = Path(__file__).with_name("sdk_client.py")


class Sdk:
    """One SDK, at work."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self._process = process

    def faults(self, kind: str, value: object) -> list[str]:
        """What is wrong with a value of the SDK's type `kind`; nothing: it is valid."""
        return [str(fault) for fault in self.ask(kind, value)]

    def ask(self, kind: str, value: object) -> list[Any]:
        """The worker's answer to one line."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps({"type": kind, "value": value}) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        assert line, f"the SDK's process ended with {self._process.wait()}; its complaint is on standard error"
        answer: list[Any] = json.loads(line)
        return answer


@contextmanager
def sdk_at_work(name: str, program: Path) -> Iterator[Sdk]:
    """Run `program` beside an SDK. Raises `JudgeMissingError` where the SDK is not installed."""
    command = [str(python_of(name)), "-I", str(program), name]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, encoding="utf-8") as process:
        yield Sdk(process)  # leaving closes its standard input, at which it ends
