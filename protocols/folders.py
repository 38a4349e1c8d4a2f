"""Folders that only their owner can look into."""

from pathlib import Path
from typing import Final

_OWNER_ONLY: Final = 0o700


def make_private(folder: Path) -> None:
    """Make a folder, and those above it that are missing, for their owner alone; those that are there stay as they are.

    `Path.mkdir(mode=..., parents=True)` gives its mode to the last one only. Raises `OSError`.
    """
    missing = [part for part in folder.parents if not part.exists()]
    for part in (*reversed(missing), folder):
        part.mkdir(mode=_OWNER_ONLY, exist_ok=True)
