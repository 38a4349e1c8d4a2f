"""Small files of /proc and /sys, which may be missing, unreadable or empty at any moment."""

import os
from collections.abc import Iterator
from pathlib import Path


def read_text(path: Path) -> str | None:
    """The text without blanks around it; None where there is none."""
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip() or None
    except OSError:
        return None


def read_integer(path: Path) -> int | None:
    """The number; None where there is none."""
    text = read_text(path)
    try:
        return None if text is None else int(text)
    except ValueError:
        return None


def entries(folder: Path) -> Iterator[Path]:
    """What is in a folder, in a fixed order; nothing where there is no such folder."""
    try:
        found = sorted(folder.iterdir())
    except OSError:
        found = []
    yield from found


def is_linux(root: Path) -> bool:
    """Whether this is the root of a system whose kernel is Linux."""
    return is_there(root / "proc")


def is_there(path: Path) -> bool:
    """Whether it exists and may be looked at: Android forbids apps parts of /sys, which `Path.exists` raises an error for."""
    return os.path.exists(path)
