"""The model and the engine that the hub's page gives to browser tabs."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from ...protocols import ModelError
from .agents import model_path

_MOST_CONTEXT: Final = 4096
"""Tokens: a phone has memory for the key-value cache of no more."""
_PART_BYTES: Final = 2 * 1024**3
"""Bytes of one file that wllama can read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PageModel:
    """A model that tabs load from the hub."""

    described: Mapping[str, Any]
    """The page's JSON: name, context_tokens, parameters, takes_tools, and the sha256 and the bytes of each part."""
    parts: Mapping[str, Path]
    """The files, by their checksums in hexadecimal, in the order of the model."""


def read_page_model(name: str, progress: Callable[[str, int, int], None]) -> PageModel:
    """Read the header of a GGUF model and take the checksums of its files. `name` is a model of `nearfar models list`, or a path.

    Raises `ModelNotFound` or `ModelError` for a model that tabs cannot load.
    """
    from ...device.gguf import model_parts, read_header
    from ...device.store.download import sha256_of

    path = model_path(name)
    header = read_header(path)
    files = model_parts(path)
    if large := [file for file in files if file.stat().st_size > _PART_BYTES]:
        raise ModelError(
            f"{large[0].name} has more than 2 GiB, which no browser loads", hint="split it with llama-gguf-split --split-max-size 2G"
        )
    parts = {sha256_of(file, progress): file for file in files}
    described = {
        "name": path.stem,
        "context_tokens": min(header.context_tokens or _MOST_CONTEXT, _MOST_CONTEXT),
        "parameters": header.parameters,
        "world": header.world,
        "takes_tools": "tool" in (header.chat_template or ""),
        "parts": [{"sha256": digest, "bytes": file.stat().st_size} for digest, file in parts.items()],
    }
    return PageModel(described=described, parts=parts)


def engine_files() -> Path:
    """Return the folder of wllama's files. Raises `ConfigError` if they are not installed."""
    from ...device.store.browser_engine import require_engine

    return require_engine()


def fetch_engine(progress: Callable[[str, int, int], None], archives: Path | None) -> Path:
    """Install wllama from npm's registry, or from the `archives` in a folder, and return where it is. Raises as `install_engine` does."""
    from ...device.store.browser_engine import install_engine

    return install_engine(progress, archives)
