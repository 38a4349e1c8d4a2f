"""The list of models, one JSON file that processes share: written atomically, and changed under a lock."""

import fcntl
import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

from pydantic import TypeAdapter, ValidationError

from ...protocols import ConfigError
from ...protocols.messages import Value


class StoredFile(Value):
    """One file of a model, as it was when its checksum was taken."""

    path: str
    bytes: int
    modified_ns: int
    sha256: str

    @property
    def is_unchanged(self) -> bool:
        """Whether the file looks as it did when its checksum was taken; one that cannot be looked at does not."""
        try:
            state = Path(self.path).stat()
        except OSError:
            return False
        return (state.st_size, state.st_mtime_ns) == (self.bytes, self.modified_ns)


class StoredModel(Value):
    """A model by its name."""

    name: str
    path: str
    """What to load: a .gguf file, the first part of a split one, or an ONNX folder."""
    format: Literal["gguf", "onnx"]
    source: str
    """`hf:owner/repo:FILE`, or `file` for one that was added where it lies."""
    commit: str | None = None
    """Of the repository."""
    owned: bool
    """Whether the store fetched the files, and so deletes them with the model."""
    files: tuple[StoredFile, ...]
    quarantined: str = ""
    """What a check has found wrong with it; empty: nothing."""

    @property
    def bytes(self) -> int:
        return sum(file.bytes for file in self.files)

    @property
    def obstacle(self) -> str:
        """Why it must not be loaded; empty: it may."""
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
        """All models by name. Raises `ConfigError` if the file is not what `change` wrote."""
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
        """The models, to be changed in place; written when the block ends without an error. Others wait meanwhile."""
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
