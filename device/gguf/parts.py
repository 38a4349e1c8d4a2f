"""Models that are split into several files: `NAME-00001-of-00003.gguf` and so on, in one folder."""

import re
from pathlib import Path
from typing import Final

from ...protocols import ModelNotFound

PART: Final = re.compile(r"(?P<stem>.+)-(?P<number>\d{5})-of-(?P<count>(?!00000)\d{5})\.gguf", re.IGNORECASE)
"""The name of one part."""


def model_parts(path: Path) -> list[Path]:
    """All files of the model at `path`, which is the only one or the first of several. Raises `ModelNotFound` if one is missing."""
    part = PART.fullmatch(path.name)
    numbers = range(1, int(part["count"]) + 1) if part else ()
    files = [path.with_name(f"{part['stem']}-{number:05}-of-{part['count']}.gguf") for number in numbers] if part else [path]
    for file in files:
        if not file.is_file():
            raise ModelNotFound(f"there is no model file {file}", hint="check the path; a split model needs all its parts in one folder")
    return files
