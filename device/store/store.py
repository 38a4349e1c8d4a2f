"""`ModelStore`: models by name, fetched from the hub or added where they lie, pinned to their checksums."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ...protocols import ConfigError, ModelError, ModelNotFound, NearfarError
from .download import Progress
from .hub import PREFIX, HubFile, HubOptions, HubReference, ModelHub, Snapshot, data_folder
from .index import Index, Models, Quarantine, StoredModel, check_model, fault_of, model_files, model_format, store_file

_NAME: Final = re.compile(r"[A-Za-z0-9][\w.-]{0,99}", re.ASCII)
_PART: Final = re.compile(r"-\d{5}-of-\d{5}$")
_SHA256: Final = re.compile(r"[0-9a-f]{64}")
RESERVED: Final = ("near", "far", "near-text", "near-calls")
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
        path = path.expanduser().absolute()
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

    def available(self, text: str, revision: str = "main") -> tuple[Snapshot, ModelHub]:
        """List the repository of an `hf:` reference; also return the hub that it is on. Raises as `pull` does."""
        return self._hub.snapshot(HubReference.parse(text).repository, revision), self._hub

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
