"""Make the environments of the judges: software of other makers that tests and benchmarks hold Nearfar against.

    python scripts/judges.py [NAME...]

Each judge gets a virtual environment of its own in the user's cache (`NEARFAR_JUDGES` names another folder), because LiteLLM and the SDKs
want versions of their own. A judge that is there already costs nothing. One that cannot be installed is reported, and the tests that need
it are skipped with that reason.
"""

import fcntl
import os
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Final

JUDGES: Final = {
    "anthropic": "anthropic==2.12.0",
    "google-genai": "google-genai==3.4.0",
    "langchain": "langchain-tests==1.1.9 langchain==1.5.2",
    "litellm": "litellm[proxy]==1.106.2",
    "openai": "openai==3.54.0",
}
_SECONDS: Final = 900
_PIP_OPTIONS: Final = ("--quiet", "--disable-pip-version-check", "--no-input", "--no-compile", "--retries", "1", "--timeout", "20")
_LONGEST_REASON: Final = 300


class JudgeMissingError(Exception):
    """A judge is not installed; the text says why and what to do."""


def python_of(name: str) -> Path:
    """Return the interpreter of a judge's environment. Raise `JudgeMissingError` where it is not installed; this installs nothing."""
    folder = _folder(name)
    if (folder / "ready").exists():
        return folder / "bin" / "python"
    reason = folder / "reason"
    said = reason.read_text(encoding="utf-8") if reason.exists() else "it was not made yet"
    raise JudgeMissingError(f"no environment with {JUDGES[name]}: {said}; run `make judges`")


def make(name: str) -> Path:
    """Install a judge unless it is there, and return its interpreter. Raise `JudgeMissingError` if pip cannot."""
    folder = _folder(name)
    with _locked(folder):
        if not (folder / "ready").exists():
            _install(name, folder)
    return python_of(name)


def _folder(name: str) -> Path:
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    root = Path(os.environ.get("NEARFAR_JUDGES") or Path(cache) / "nearfar" / "judges")
    versions = "-".join(package.partition("==")[2] for package in JUDGES[name].split())
    return root / f"{name}-{versions}-{sys.implementation.cache_tag}"


def _install(name: str, folder: Path) -> None:
    print(f"judges: installing {JUDGES[name]}", flush=True)
    try:
        _run(sys.executable, "-m", "venv", "--clear", "--without-pip", str(folder))
        _run(sys.executable, "-m", "pip", "--python", str(folder / "bin" / "python"), "install", *_PIP_OPTIONS, *JUDGES[name].split())
    except (OSError, subprocess.SubprocessError) as error:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "reason").write_text(_reason(error), encoding="utf-8")
    else:
        (folder / "ready").touch()


def _run(*command: str) -> None:
    subprocess.run(command, check=True, stdin=subprocess.DEVNULL, capture_output=True, timeout=_SECONDS)


def _reason(error: OSError | subprocess.SubprocessError) -> str:
    """The last of pip's errors, or what kept it from running."""
    written = error.stderr.decode(errors="replace") if isinstance(error, subprocess.CalledProcessError) else ""
    errors = [line.removeprefix("ERROR: ") for line in written.splitlines() if line.startswith("ERROR: ")]
    return (errors or [str(error)])[-1][:_LONGEST_REASON]


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Hold other processes off while an environment is made."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with folder.with_name(f"{folder.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def main(names: list[str]) -> None:
    """Make the environments that `names` tell, or all."""
    if unknown := set(names) - set(JUDGES):
        raise SystemExit(f"judges: no such judge: {', '.join(sorted(unknown))}; there are {', '.join(JUDGES)}")
    with ThreadPoolExecutor() as pool:  # most of the time goes to waiting for the network
        for complaint in pool.map(_complaint_of_making, names or JUDGES):
            if complaint is not None:
                print(f"judges: {complaint}", file=sys.stderr)


def _complaint_of_making(name: str) -> str | None:
    try:
        make(name)
    except JudgeMissingError as error:
        return str(error)
    return None


if __name__ == "__main__":
    main(sys.argv[1:])
