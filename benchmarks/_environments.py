"""Virtual environments of their own for what figures are compared with, or measured on."""

import os
import subprocess
import sys
import venv
from collections.abc import Sequence
from pathlib import Path
from typing import Final

HOUR: Final = 3600
_READY: Final = "ready"


def cache_folder() -> Path:
    """Return the folder in which they are kept."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "nearfar"


def python_with(what: str, name: str, wanted: Sequence[Sequence[str]], *, cache: Path, may_install: bool) -> Path:
    """Return the Python of an environment, which is made at the first call. Raises `LookupError` where it cannot be.

    Args:
        what: the product and its release, for the error's message.
        name: of the environment's folder.
        wanted: arguments of `pip install`, for each time that it is run.
        cache: the folder in which it is kept.
        may_install: otherwise it has to be there.
    """
    home = cache / name
    python = home / ("Scripts" if sys.platform == "win32" else "bin") / "python"
    if not (home / _READY).exists():
        if not may_install:
            raise LookupError(f"{what} is not installed, which a full run does")
        venv.create(home, clear=True, with_pip=True)
        for each in wanted:
            _install(python, what, each)
        (home / _READY).touch()
    return python


def last_line(text: str) -> str:
    """Return the last line of a program's output that says anything."""
    return next((line for line in reversed(text.splitlines()) if line.strip()), "it said nothing")


def _install(python: Path, what: str, wanted: Sequence[str]) -> None:
    command = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *wanted]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=HOUR)
    if done.returncode:
        raise LookupError(f"pip cannot install {what}: {last_line(done.stderr)}")
