"""Which configuration a command reads."""

from pathlib import Path
from typing import Final

from ..compose.config import Config, load_config

DEFAULT_CONFIG: Final = Path("nearfar.toml")


def read_config(path: Path | None) -> Config | None:
    """The named file, else ./nearfar.toml where there is one."""
    if path is None and not DEFAULT_CONFIG.exists():
        return None
    return load_config(path or DEFAULT_CONFIG)
