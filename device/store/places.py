"""Where things lie: the store's own folder, and what Hugging Face's environment variables say."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

_TRUE: Final = ("1", "on", "yes", "true")


def data_folder(environment: Mapping[str, str] = os.environ) -> Path:
    """`NEARFAR_HOME`, else `nearfar` in the user's data folder as the XDG base directory specification names it."""
    if home := environment.get("NEARFAR_HOME"):
        return Path(home).expanduser()
    data = environment.get("XDG_DATA_HOME")
    return (Path(data) if data else Path.home() / ".local" / "share") / "nearfar"


@dataclass(frozen=True, slots=True, kw_only=True)
class HubSettings:
    """How the hub is reached, and where its files are kept for all programs that use it."""

    endpoint: str = "https://huggingface.co"
    token: str | None = None
    hosts: tuple[str, ...] = ()
    """Where the hub may redirect to beside the public internet: `HOST` or `HOST:PORT`."""
    cache: Path
    is_offline: bool = False
    pause: float = 0.5
    """Seconds before a broken connection is tried again the first time."""

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] = os.environ) -> Self:
        """What the variables `HF_ENDPOINT`, `HF_TOKEN`, `HF_TOKEN_PATH`, `HF_HOME`, `HF_HUB_CACHE` and `HF_HUB_OFFLINE` say.

        And `NEARFAR_MODEL_HOSTS`, the `hosts` with commas between them. The others' meaning: https://huggingface.co/docs/huggingface_hub/package_reference/environment_variables
        """
        caches = environment.get("XDG_CACHE_HOME") or "~/.cache"
        home = _folder(environment.get("HF_HOME") or f"{caches}/huggingface")
        token = _folder(environment.get("HF_TOKEN_PATH") or home / "token")
        return cls(
            endpoint=(environment.get("HF_ENDPOINT") or "https://huggingface.co").rstrip("/"),
            token=environment.get("HF_TOKEN", "").strip() or _read_token(token),
            hosts=tuple(filter(None, map(str.strip, environment.get("NEARFAR_MODEL_HOSTS", "").split(",")))),
            cache=_folder(environment.get("HF_HUB_CACHE") or home / "hub"),
            is_offline=environment.get("HF_HUB_OFFLINE", "").lower() in _TRUE,
        )


def _folder(text: str | Path) -> Path:
    """Return the place that a variable of Hugging Face's names, as their own programs read it."""
    return Path(os.path.expandvars(os.path.expanduser(text)))


def _read_token(path: Path) -> str | None:
    """The token that `hf auth login` left."""
    try:
        return path.read_text(encoding="utf-8").strip() or None
    except (OSError, UnicodeDecodeError):
        return None
