"""Which models fit into this device's memory, with which context: those that are here, and those of a repository that are not yet."""

import tempfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ...protocols import ConfigError, ModelError
from ...protocols.system import expand_home
from ..gguf import model_parts, read_header
from ..gguf_file import read_gguf
from ..llama import Footprint, ModelShape
from . import ModelStore
from .hub import PREFIX, HubFile, HubReference, ModelHub, Snapshot, labels_of, models_among, quant_of

_CONTEXTS: Final = (2048, 8192, 32768)
"""Contexts that are looked at where none is named."""
_HEADER_BYTES: Final = (1 << 23, 1 << 26)
"""Bytes of a file that are fetched to read its header: at first, and if that was not all of it."""
_MARGIN: Final = 1.15
"""The prediction is right within 15 %."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A model that might be loaded."""

    name: str
    weights: int
    shape: ModelShape


@dataclass(frozen=True, slots=True)
class ModelFit:
    """A model with a context."""

    name: str
    context_tokens: int
    footprint: Footprint
    verdict: str
    """`fits`, `tight` (by less than the prediction's error), `too large`, or `unknown` where the free memory is."""


@dataclass(frozen=True, slots=True)
class Fits:
    """All models looked at, and their largest contexts."""

    free_bytes: int | None
    """Memory that may be taken, within the limits of a container; None: unknown."""
    fits: list[ModelFit]
    largest_contexts: dict[str, int | None]
    """The largest context that fits, by model; None: none does, or the free memory is unknown."""


def stored_candidates(store: ModelStore, name: str | None) -> list[Candidate]:
    """Return the model of a name or path, each quantisation that an `hf:` reference may mean, or, without a name, the whole store.

    Models that must not be loaded, adapters, and models of onnxruntime are left out of the whole store. Only the header of a file in a
    repository is fetched. Raises as `ModelStore.path_of` and `ModelStore.pull` do.
    """
    if name is None:
        usable = [model for model in store.models() if model.format == "gguf" and not model.obstacle]
        candidates = [local_candidate(model.name, Path(model.path)) for model in usable]
        return [candidate for candidate in candidates if candidate.shape.trained_tokens]
    reference = HubReference.parse(name) if name.startswith(PREFIX) else None
    model = store.find(name) if reference is None or reference.selector else None
    if reference is not None and model is None:
        return list(_remote(*store.available(name), reference))
    candidate = local_candidate(name, store.path_of(name) if model is not None else expand_home(Path(name)))
    if not candidate.shape.trained_tokens:
        raise ConfigError(
            f"{name} is not a language model on its own", hint="adapters and image encoders are loaded with the model they are for"
        )
    return [candidate]


def local_candidate(name: str, path: Path) -> Candidate:
    """Describe a model on this device. Raises `ModelNotFound` or `ModelError` if it cannot be loaded, `ConfigError` if it is no GGUF."""
    if path.is_dir():
        raise ConfigError(f"{path} is not a GGUF file", hint="the memory of an ONNX model cannot be predicted; load it and look")
    files = [read_gguf(part) for part in model_parts(path)]
    weights = sum(tensor.bytes for file in files for tensor in file.tensors)
    return Candidate(name, weights, ModelShape.of(files[0], read_header(path)))


def fits(models: Sequence[Candidate], free: int | None, *, context: int | None, parallel: int) -> Fits:
    """Predict each model's memory with this context, or with a few; no model gets more context than it was trained for."""
    found = [
        ModelFit(model.name, tokens, footprint, _verdict(footprint.total, free))
        for model in models
        for tokens in sorted({min(tokens, model.shape.trained_tokens) for tokens in ((context,) if context else _CONTEXTS)})
        for footprint in [model.shape.footprint(model.weights, context_tokens=tokens, parallel=parallel)]
    ]
    largest = {model.name: model.shape.largest_context(model.weights, free or 0, parallel=parallel) for model in models}
    return Fits(free, found, largest)


def _verdict(needed: int, free: int | None) -> str:
    if free is None:
        return "unknown"
    return "fits" if needed * _MARGIN <= free else "tight" if needed <= free else "too large"


def _remote(snapshot: Snapshot, hub: ModelHub, reference: HubReference) -> Iterator[Candidate]:
    models = models_among(snapshot.files)
    chosen = {title: files for title, files in models.items() if reference.means(files[0])} if reference.selector else models
    if not chosen:
        reference.select(snapshot.files)  # Raises, and lists the files.
    headers: dict[str, tuple[ModelShape, int]] = {}
    labels = labels_of(chosen)
    for title, files in sorted(chosen.items(), key=lambda item: _bytes(snapshot, item[1])):
        # All quantisations of one model have the same name without the quantisation, and nearly the same header.
        quant = quant_of(title)
        model = title.replace(quant, "") if quant != title else title
        if model not in headers:
            headers[model] = _header(snapshot, hub, snapshot.files[files[0]])
        shape, length = headers[model]
        yield Candidate(labels[title], _bytes(snapshot, files) - length, shape)


def _bytes(snapshot: Snapshot, files: Iterable[str]) -> int:
    return sum(snapshot.files[name].bytes for name in files)


def _header(snapshot: Snapshot, hub: ModelHub, file: HubFile) -> tuple[ModelShape, int]:
    """Fetch the beginning of a file; return the model's shape and the bytes of the file's header."""
    fault = ""
    for length in _HEADER_BYTES:
        with tempfile.NamedTemporaryFile(suffix=".gguf") as copy:
            copy.write(hub.head(snapshot, file, length))
            copy.truncate(file.bytes)  # The rest is a hole, so that all tensors are where they should be.
            copy.flush()
            path = Path(copy.name)
            try:
                parsed = read_gguf(path)
                return ModelShape.of(parsed, read_header(path)), file.bytes - sum(tensor.bytes for tensor in parsed.tensors)
            except ModelError as error:
                fault = error.message.replace(str(path), file.name)
    raise ModelError(fault, hint="report this to its publisher")
