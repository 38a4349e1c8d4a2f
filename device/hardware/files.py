"""Small files of /proc and /sys, which may be missing, unreadable or empty at any moment."""

import os
from collections.abc import Iterator
from pathlib import Path


def read_text(path: Path) -> str | None:
    """Return the file's text, stripped; None if it is missing, unreadable or empty."""
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip() or None
    except OSError:
        return None


def read_integer(path: Path) -> int | None:
    """Return the file's number; None if there is none."""
    text = read_text(path)
    try:
        return None if text is None else int(text)
    except ValueError:
        return None


def entries(folder: Path) -> Iterator[Path]:
    """Yield the paths in a folder, sorted; none if there is no such folder."""
    try:
        found = sorted(folder.iterdir())
    except OSError:
        found = []
    yield from found


def is_linux(root: Path) -> bool:
    """Return True if `root` is the root of a Linux system."""
    return is_there(root / "proc")


def is_there(path: Path) -> bool:
    """Return True if the path exists and may be looked at. Android forbids apps parts of /sys, for which `Path.exists` raises an error."""
    return os.path.exists(path)
