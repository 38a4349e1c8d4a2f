"""Create folders that only their owner can read."""

from pathlib import Path
from typing import Final

_OWNER_ONLY: Final = 0o700


def make_private(folder: Path) -> None:
    """Create a folder and its missing parents, readable by their owner only. Existing folders keep their mode.

    `Path.mkdir(mode=..., parents=True)` applies its mode to the last folder only. Raise `OSError`.
    """
    missing = [part for part in folder.parents if not part.exists()]
    for part in (*reversed(missing), folder):
        part.mkdir(mode=_OWNER_ONLY, exist_ok=True)
