"""wllama, which is llama.cpp for browsers: fetched from npm's registry by its checksum, for the page of `nearfar serve hub --web`."""

import hashlib
import os
import shutil
import tarfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from ...protocols import ConfigError, Unavailable
from ...protocols.system import data_folder, replacing
from .download import Progress, Transfer

if TYPE_CHECKING:
    import httpx

VERSION: Final = "3.8.1"
"""Version of wllama that the page is written for."""
_SECONDS: Final = 30.0
_PAUSE: Final = 0.5


@dataclass(frozen=True, slots=True)
class _Package:
    name: str
    bytes: int
    sha512: str
    """Checksum of the archive, in hexadecimal."""
    files: Mapping[str, str]
    """The files to keep, by their path in the archive; the name under which the page asks for each."""

    @property
    def archive(self) -> str:
        """Return the archive's name, as `npm pack` writes it."""
        return f"wllama-{self.name}-{VERSION}.tgz"

    @property
    def path(self) -> str:
        """Return the archive's path in a registry."""
        return f"@wllama/{self.name}/-/{self.name}-{VERSION}.tgz"


_PACKAGES: Final = (
    _Package(
        "wllama",
        5829483,
        "3e5ec110984f53c3879d5ff2867dc31596212cb39d48787ee13343efd5827ed1e795401d40f02cc9cfc27c8398fb8995c6f7f9556dd7c3751fec105fa2d4b583",
        {
            "package/esm/index.min.js": "wllama.js",
            "package/esm/wasm/wllama.wasm": "wllama.wasm",
        },
    ),
    _Package(
        "wllama-compat",
        4080712,
        "22f9a3ac9f89cc36eddf0d4542ad720269c51222c609c7a8c0ad90f34cd6fa4f4284590f04cd41c97ffdc66db1571c9df0c1c2e74569b83a3a48313cde4f6421",
        {
            "package/wasm/wllama.js": "compat.js",
            "package/wasm/wllama.wasm": "compat.wasm",
        },
    ),
)
"""The second is for browsers without WebAssembly of 64 bits, such as Safari."""
_NAMES: Final = tuple(name for package in _PACKAGES for name in package.files.values())


def engine_folder() -> Path:
    """Return the folder of wllama's files, installed or not."""
    return data_folder() / "web" / f"wllama-{VERSION}"


def require_engine() -> Path:
    """Return the folder of wllama's files. Raises `ConfigError` if they are not installed."""
    folder = engine_folder()
    if not all((folder / name).is_file() for name in _NAMES):
        raise ConfigError(f"wllama {VERSION}, the engine of the page, is not installed", hint="nearfar models web")
    return folder


def install_engine(progress: Progress, archives: Path | None = None) -> Path:
    """Fetch wllama, check it and unpack the files that the page needs. Return their folder.

    Args:
        progress: is told how far a download is.
        archives: a folder with the archives as `npm pack` writes them. None: npm's registry, or the one in `NPM_CONFIG_REGISTRY`.

    Raises `ConfigError` for an archive that is missing or has another checksum, and `Unavailable` if the registry cannot be reached.
    """
    folder = engine_folder()
    folder.mkdir(parents=True, exist_ok=True)
    for package in _PACKAGES:
        archive = folder / package.archive if archives is None else archives / package.archive
        if archives is None:
            _fetch(package, archive, progress)
        _check(package, archive, is_ours=archives is None)
        _unpack(package, archive, folder)
        if archives is None:
            archive.unlink()
    return folder


def _fetch(package: _Package, archive: Path, progress: Progress) -> None:
    try:
        import httpx
    except ImportError as error:
        raise ConfigError("fetching wllama needs the Python package httpx", hint="pip install 'nearfar[models]'") from error
    registry = os.environ.get("NPM_CONFIG_REGISTRY") or "https://registry.npmjs.org"

    def refuse(response: "httpx.Response") -> Unavailable:
        return Unavailable(f"the registry answered {response.status_code} for {package.path}", hint="check NPM_CONFIG_REGISTRY")

    with httpx.Client(timeout=_SECONDS, headers={"Accept-Encoding": "identity"}) as client:
        Transfer(
            client=client,
            url=f"{registry.rstrip('/')}/{package.path}",
            partial=archive,
            size=package.bytes,
            refuse=refuse,
            progress=progress,
            title=package.archive,
            pause=_PAUSE,
        ).run()


def _check(package: _Package, archive: Path, *, is_ours: bool) -> None:
    """Raise `ConfigError` if the archive is not the pinned one; delete it then if it `is_ours`."""
    try:
        found = hashlib.sha512(archive.read_bytes()).hexdigest()
    except OSError as error:
        raise ConfigError(f"{archive} cannot be read: {error.strerror}", hint=f"npm pack @wllama/{package.name}@{VERSION}") from None
    if found != package.sha512:
        if is_ours:
            archive.unlink()
        raise ConfigError(f"{archive.name} has the wrong checksum: it is damaged, or not what was published", hint="run it again")


def _unpack(package: _Package, archive: Path, folder: Path) -> None:
    """Write the package's files into `folder`, each whole or not at all."""
    with tarfile.open(archive) as packed:
        for path, name in package.files.items():
            source = packed.extractfile(path)
            if source is None:
                raise ConfigError(f"{archive.name} has no {path}")
            with source, replacing(folder / name) as fresh, fresh.open("wb") as written:
                shutil.copyfileobj(source, written)
