"""The list of stored models, the checks of their files, and the quarantine for files that fail them.

The list is one JSON file that processes share: written atomically, and changed under a lock.
"""

import fcntl
import json
import logging
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final, Literal

from pydantic import TypeAdapter, ValidationError

from ...protocols import ConfigError, ModelError
from ...protocols.steps import Value
from ..gguf import check_part, model_parts, read_header
from .download import Progress, content_of, sha256_of


class StoredFile(Value):
    """One file of a model, as it was when its checksum was taken."""

    path: str
    bytes: int
    modified_ns: int
    sha256: str

    @property
    def is_unchanged(self) -> bool:
        """True if size and time are as they were when the checksum was taken; False for a file that cannot be looked at."""
        try:
            state = Path(self.path).stat()
        except OSError:
            return False
        return (state.st_size, state.st_mtime_ns) == (self.bytes, self.modified_ns)


class StoredModel(Value):
    """A model by its name."""

    name: str
    path: str
    """The path to load: a .gguf file, the first part of a split one, or an ONNX folder."""
    format: Literal["gguf", "onnx"]
    source: str
    """`hf:owner/repo:FILE`, or `file` for one that was added where it lies."""
    commit: str | None = None
    """Commit of the repository."""
    owned: bool
    """True if the store fetched the files, and so deletes them with the model."""
    files: tuple[StoredFile, ...]
    quarantined: str = ""
    """The fault that a check has found; empty: none."""

    @property
    def bytes(self) -> int:
        return sum(file.bytes for file in self.files)

    @property
    def obstacle(self) -> str:
        """The reason why the model must not be loaded; empty: it may."""
        if self.quarantined:
            return f"in quarantine: {self.quarantined}"
        changed = next((file.path for file in self.files if not file.is_unchanged), None)
        return "" if changed is None else f"{changed} has changed since it was checked"


Models = dict[str, StoredModel]
_MODELS: TypeAdapter[list[StoredModel]] = TypeAdapter(list[StoredModel])


class Index:
    """The list, in `folder`."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._path = folder / "index.json"

    def read(self) -> Models:
        """Return all models by name. Raises `ConfigError` if the file is not what `change` wrote."""
        try:
            text = self._path.read_bytes()
        except FileNotFoundError:
            return {}
        try:
            return {model.name: model for model in _MODELS.validate_python(json.loads(text)["models"], strict=False)}
        except (ValueError, KeyError, TypeError, ValidationError, RecursionError) as error:
            hint = "delete it and add or pull the models again; files that were fetched are not fetched twice"
            raise ConfigError(f"{self._path} is damaged", hint=hint) from error

    @contextmanager
    def change(self) -> Iterator[Models]:
        """Yield the models, to be changed in place, and write them if the block ends without an error. Other processes wait meanwhile."""
        with locked(self._folder / "index.lock"):
            models = self.read()
            yield models
            temporary = self._path.with_suffix(".tmp")
            with temporary.open("w", encoding="utf-8") as file:
                json.dump({"models": [model.model_dump(mode="json") for model in models.values()]}, file, indent=1)
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(self._path)


@contextmanager
def locked(path: Path, *, waiting: Callable[[], None] = lambda: None) -> Iterator[None]:
    """Keep other processes that lock `path` out of the block; they wait, and call `waiting` before they do."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            waiting()
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


_ONNX_CONFIGURATION: Final = "genai_config.json"


def model_format(path: Path) -> Literal["gguf", "onnx"]:
    return "onnx" if path.is_dir() else "gguf"


def model_files(path: Path) -> list[Path]:
    """Return all files of the model at `path`: a GGUF file, all parts of a split one, or the files of an ONNX folder.

    Raises `ModelNotFound` if there are none, or parts are missing, and `ModelError` for a folder that is no ONNX model.
    """
    if path.is_dir():
        if not (path / _ONNX_CONFIGURATION).is_file():
            raise ModelError(f"{path} has no {_ONNX_CONFIGURATION}", hint="give a .gguf file, or a folder for onnxruntime-genai")
        return sorted(file for file in path.rglob("*") if file.is_file())
    return model_parts(path)


def check_model(path: Path) -> None:
    """Look at a model without loading it. Raises `ModelError` with what is wrong with it."""
    if path.is_dir():
        from ..onnx.folder import read_folder

        read_folder(path)
        return
    first, *others = model_parts(path)
    read_header(first)
    for part in others:
        check_part(part)


def store_file(path: Path, progress: Progress) -> StoredFile:
    """Describe the file as it is now, with its checksum."""
    state = path.stat()
    return StoredFile(path=str(path), bytes=state.st_size, modified_ns=state.st_mtime_ns, sha256=sha256_of(path, progress))


def fault_of(model: StoredModel, expected: Sequence[str | None]) -> str:
    """Return the fault of a model whose files should have these checksums, None for unknown ones; empty: the model is sound."""
    for file, checksum in zip(model.files, expected, strict=True):
        if checksum is not None and file.sha256 != checksum:
            return f"{Path(file.path).name} has the SHA-256 {file.sha256}, not {checksum}"
    try:
        check_model(Path(model.path))
    except ModelError as error:
        return error.message
    return ""


logger = logging.getLogger(__name__)


class Quarantine:
    """The folder, made when it is first needed."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def take(self, files: Iterable[StoredFile], reason: str) -> tuple[StoredFile, ...]:
        """Move the files here, links with what they point to, and note why."""
        return tuple(self._take(file, reason) for file in files)

    def delete(self, path: Path) -> None:
        """Delete a file that the store has fetched, with its content in the cache, or a file in quarantine, with its note."""
        content = path if self._holds(path) else content_of(path)
        if content is None:
            logger.warning("%s is not deleted: the file or the target of its link is outside of the cache", path)
            return
        for each in (path, _reason(path)) if self._holds(path) else (content, path):
            each.unlink(missing_ok=True)

    def _holds(self, path: Path) -> bool:
        return path.parent == self._folder

    def _take(self, file: StoredFile, reason: str) -> StoredFile:
        source = Path(file.path)
        target = self._folder / f"{file.sha256[:12]}-{source.name}"
        try:
            if self._holds(source) or not source.exists():
                return file  # It is here already, or on a disk that may come back.
            if (content := content_of(source)) is None:
                logger.warning("%s is not moved to %s: the file or the target of its link is outside of the cache", source, self._folder)
                return file
            self._folder.mkdir(parents=True, exist_ok=True)
            _reason(target).write_text(f"{file.path}\n{reason}\n", encoding="utf-8")
            shutil.move(content, target)
            source.unlink(missing_ok=True)
        except OSError as error:
            # A full or a read-only disk: the file stays where it is, and the list of models keeps it from being loaded.
            logger.warning("%s cannot be moved to %s: %s", source, self._folder, error)
            return file
        return file.model_copy(update={"path": str(target)})


def _reason(path: Path) -> Path:
    """Return the path of the note for a file in quarantine."""
    return path.with_name(f"{path.name}.reason.txt")
