"""The model store: what it does with models, the list of those that are stored, the checks of their files, and the quarantine.

The list is one JSON file that processes share: written atomically, and changed under a lock.
"""

import json
import logging
import re
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from pydantic import TypeAdapter, ValidationError

from ...protocols import ConfigError, ModelError, ModelNotFound, NearfarError
from ...protocols.steps import Value
from ...protocols.system import data_folder, expand_home, replace_text
from ..gguf import check_part, model_parts, read_header
from .download import Progress, content_of, locked, sha256_of
from .hub import PREFIX, HubFile, HubOptions, HubReference, ModelHub, Snapshot


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
            replace_text(self._path, json.dumps({"models": [model.model_dump(mode="json") for model in models.values()]}, indent=1))


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


_NAME: Final = re.compile(r"[A-Za-z0-9][\w.-]{0,99}", re.ASCII)
_PART: Final = re.compile(r"-\d{5}-of-\d{5}$")
_SHA256: Final = re.compile(r"[0-9a-f]{64}")
RESERVED: Final = ("near", "far", "near-text", "near-calls", "near-judge")
"""Names of the models and adapters that ship with nearfar."""


def silent(_title: str, _done: int, _total: int) -> None:
    """Ignore the progress."""


@dataclass(frozen=True, slots=True)
class ModelVerdict:
    """The result of checking a stored model again."""

    model: StoredModel
    fault: str
    """The fault; empty: none."""


class ModelStore:
    """The models of this user on this device. Several processes may use the same store."""

    def __init__(self, folder: Path | None = None, hub: HubOptions | None = None) -> None:
        """Open the store in `folder`, by default the user's data folder; `hub`: by default as the environment configures it."""
        self._folder = (folder or data_folder()) / "models"
        self._index = Index(self._folder)
        self._quarantine = Quarantine(self._folder / "quarantine")
        self._hub = ModelHub(hub or HubOptions.from_environment())

    def models(self) -> list[StoredModel]:
        """Return all models, sorted by name."""
        return sorted(self._index.read().values(), key=lambda model: model.name)

    def find(self, name: str) -> StoredModel | None:
        """Return the model of that name, or the one that was pulled by this `hf:` reference; None: there is none."""
        models = self._index.read()
        if not name.startswith(PREFIX):
            return models.get(name)
        reference = HubReference.parse(name)
        source = f"{PREFIX}{reference.repository}:"
        pulled = [model for model in models.values() if model.source.startswith(source)]
        fitting = [model for model in pulled if reference.means(model.source.removeprefix(source))]
        if len(fitting) > 1:
            raise ConfigError(f"{name} fits {len(fitting)} models", hint=f"name one of them: {', '.join(model.name for model in fitting)}")
        return fitting[0] if fitting else None

    def path_of(self, name: str) -> Path:
        """Return the path to load for a name or an `hf:` reference. Nothing is fetched.

        Raises `ModelNotFound` if it is not in the store, and `ModelError` if it must not be loaded: it is in quarantine, or its files
        are
        no longer those whose checksum was taken.
        """
        model = self.find(name)
        if model is None:
            hint = f"nearfar models pull {name}" if name.startswith(PREFIX) else "`nearfar models list` shows all"
            raise ModelNotFound(f"there is no model {name} on this device", hint=hint)
        if obstacle := model.obstacle:
            again = f"nearfar models rm {model.name}, then add or pull it again"
            raise ModelError(f"{model.name}: {obstacle}", hint=again if model.quarantined else f"nearfar models verify {model.name}")
        return Path(model.path)

    def add(self, path: Path, *, name: str | None = None, sha256: str | None = None, progress: Progress = silent) -> StoredModel:
        """Register a GGUF file or an ONNX folder where it lies; the store never deletes it.

        Raises `ModelNotFound` if there is none, `ModelError` if it is damaged or its SHA-256 is not the one that is asked for, and
        `ConfigError` if the name is taken or makes no sense.
        """
        path = expand_home(path).absolute()
        files = model_files(path)
        check_model(path)
        stored = tuple(store_file(file, progress) for file in files)
        if sha256 is not None and stored[0].sha256 != _pin(sha256, files):
            raise ModelError(f"{path} has the SHA-256 {stored[0].sha256}, not {sha256}", hint="get the file again from its source")
        name, kind = name or _title(path), model_format(path)
        return self._register(StoredModel(name=name, path=str(path), format=kind, source=f"file:{path}", owned=False, files=stored))

    def pull(
        self, text: str, *, name: str | None = None, revision: str = "main", sha256: str | None = None, progress: Progress = silent
    ) -> StoredModel:
        """Fetch `hf:owner/repo:FILE-or-QUANT` and register it; what an interrupted attempt fetched is not fetched again.

        Raises `ConfigError` for a reference that makes no sense or fits several models, a taken name, a full disk or offline mode;
        `ModelNotFound` if there is no such repository or quantisation; `ModelError` if what came is damaged, has not the SHA-256 that the
        hub states or the caller asks for, or is not what was pulled before; and what the network raises.
        """
        reference = HubReference.parse(text)
        snapshot = self._hub.snapshot(reference.repository, revision)
        files = self._hub.select(reference, snapshot)
        source = f"{PREFIX}{reference.repository}:{files[0].name}"
        name = _check_name(name or _title(Path(files[0].name)), self._index.read(), source)
        self._check_pins(name, files, sha256)
        # Some of the parts may be there because an earlier attempt was interrupted.
        owned = not all(self._hub.holds(snapshot, file) for file in files)
        model = self._fetch(snapshot, files, progress).model_copy(update={"name": name, "source": source, "owned": owned})
        self._hub.remember(snapshot, revision)
        fault = fault_of(model, [file.sha256 for file in files])
        model = self._register(self._put_into_quarantine(model, fault) if fault else model)
        if fault:
            again = f"nearfar models pull {text} fetches it again; if that does not help, report this to its publisher"
            hint = again if owned else f"another program put it there: delete {Path(model.path).resolve()}, then {again}"
            raise ModelError(f"{text} was put into quarantine: {fault}", hint=hint)
        return model

    def verify(self, names: Iterable[str] = (), *, progress: Progress = silent) -> list[ModelVerdict]:
        """Take the checksums of these models, by default of all, once more; what fails goes to quarantine, and is not loaded again.

        Raises `ModelNotFound` for a name that is not in the store.
        """
        return [self._verify(model, progress) for model in self._chosen(names)]

    def remove(self, name: str) -> StoredModel:
        """Forget a model, and delete its files if the store fetched them and no other model has them.

        Raises `ModelNotFound` if there is none.
        """
        model = self._chosen([name])[0]
        with self._index.change() as models:
            models.pop(model.name, None)
            self._let_go(model, models)
        return model

    def available(self, text: str) -> tuple[Snapshot, ModelHub]:
        """List the repository of an `hf:` reference; also return the hub that it is on. Raises as `pull` does."""
        return self._hub.snapshot(HubReference.parse(text).repository, "main"), self._hub

    def _chosen(self, names: Iterable[str]) -> list[StoredModel]:
        found = {name: self.find(name) for name in names}
        for name, model in found.items():
            if model is None and name in RESERVED:
                raise ConfigError(f"{name} ships with nearfar and is not in the store", hint="name another, or none for all of them")
            if model is None:
                raise ModelNotFound(f"there is no model {name} in the store", hint="`nearfar models list` shows all")
        return [model for model in found.values() if model is not None] or self.models()

    def _fetch(self, snapshot: Snapshot, files: list[HubFile], progress: Progress) -> StoredModel:
        paths = [self._hub.fetch(snapshot, file, progress) for file in files]
        stored = tuple(store_file(path, progress) for path in paths)
        return StoredModel(name="", path=str(paths[0]), format="gguf", source="", commit=snapshot.commit, owned=False, files=stored)

    def _check_pins(self, name: str, files: list[HubFile], sha256: str | None) -> None:
        """Raise `ModelError` where the hub has something else than what is asked for, or than what was pulled before."""
        if sha256 is not None and _pin(sha256, files) != files[0].sha256:
            message = f"{files[0].name} has the SHA-256 {files[0].sha256}, not {sha256}"
            raise ModelError(message, hint="compare both with the publisher's")
        known = self._index.read().get(name)
        if sha256 is not None or known is None or known.quarantined:
            return
        there = [file.sha256 for file in files]
        if len(there) != len(known.files) or any(new not in (None, old.sha256) for new, old in zip(there, known.files, strict=True)):
            hint = f"to have the new one, nearfar models rm {name} first" + (f", or state --sha256 {there[0]}" if len(there) == 1 else "")
            raise ModelError(f"{files[0].name} is no longer what was pulled as {name}", hint=hint)

    def _register(self, model: StoredModel) -> StoredModel:
        with self._index.change() as models:
            _check_name(model.name, models, model.source)
            before, models[model.name] = models.get(model.name), model
            if before is not None:
                self._let_go(before, models)
            return models[model.name]

    def _verify(self, model: StoredModel, progress: Progress) -> ModelVerdict:
        try:
            files = tuple(store_file(Path(file.path), progress) for file in model.files)
            seen = model.model_copy(update={"files": files})
            fault = fault_of(seen, [file.sha256 for file in model.files])
        except (OSError, NearfarError) as error:
            seen, fault = model, str(error)
        seen = self._put_into_quarantine(model, fault) if fault else seen.model_copy(update={"quarantined": ""})
        with self._index.change() as models:
            if models.get(model.name) == model:  # It may have been removed or fetched again meanwhile.
                models[model.name] = seen
        return ModelVerdict(seen, fault)

    def _let_go(self, model: StoredModel, models: Models) -> None:
        """Delete what was fetched for a model that is gone or replaced; what others were pulled with is theirs from now on."""
        if not model.owned:
            return
        mine, kept = _contents(model), {path for other in models.values() for path in _contents(other)}
        for heir in [other for other in models.values() if other.source.startswith(PREFIX) and mine & _contents(other)]:
            models[heir.name] = heir.model_copy(update={"owned": True})
        for file in model.files:
            if Path(file.path).resolve() not in kept:
                self._quarantine.delete(Path(file.path))

    def _put_into_quarantine(self, model: StoredModel, fault: str) -> StoredModel:
        """Mark the model as one that must not be loaded, and move its files to quarantine if they are the store's own."""
        files = self._quarantine.take(model.files, fault) if model.owned else model.files
        return model.model_copy(update={"quarantined": fault, "files": files})


def _title(path: Path) -> str:
    """Return a name for the model at `path`."""
    return _PART.sub("", path.stem if path.suffix.lower() == ".gguf" else path.name)


def _check_name(name: str, models: Mapping[str, StoredModel], source: str) -> str:
    """Return the name, if it can be given to a model from `source`. Raises `ConfigError` otherwise."""
    if not _NAME.fullmatch(name) or name.lower().endswith(".gguf"):
        raise ConfigError(f"{name!r} cannot be a model's name", hint="use --name with letters, digits, - _ and . only")
    if name in RESERVED:
        raise ConfigError(f"{name} is the name of a model that ships with nearfar", hint="use --name with another one")
    if name in models and models[name].source != source:
        raise ConfigError(f"there is a model {name} already, from {models[name].source}", hint=f"use --name, or nearfar models rm {name}")
    return name


def _pin(sha256: str, files: Sequence[object]) -> str:
    if len(files) > 1:
        raise ConfigError("one SHA-256 cannot check several files", hint="leave --sha256 out; each file's is recorded")
    if not _SHA256.fullmatch(sha256.lower()):
        raise ConfigError(f"{sha256!r} is not a SHA-256", hint="it has 64 hexadecimal digits")
    return sha256.lower()


def _contents(model: StoredModel) -> set[Path]:
    """Return the real paths of a model's files: several links in the cache may lead to one."""
    return {Path(file.path).resolve() for file in model.files}
