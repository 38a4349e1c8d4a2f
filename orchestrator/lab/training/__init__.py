"""Train a head of the router on recorded outcomes, with torch, and write it: arrays of the words part, an ONNX model and a card."""

from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from ....protocols import ConfigError
from ....protocols.system import hint_for, replacing
from ...routing.head import CARD, LIKENESS, SURFACE, WORDS, Blend, HeadCard, HeadPart, checksum
from ...routing.training import ClassLogits, Examples, fit_classes, folds_of
from ...util.embedding import EARLY_WIDTH, NAME
from .parts import (
    HEAD_PRIOR,
    MOST_DEVIATIONS,
    NEAREST,
    REACH,
    Features,
    LikenessPart,
    WordsPart,
    fit_likeness,
    fit_words,
    relative_by_length,
    share_of,
    surface_weight,
    words_logits,
)

if TYPE_CHECKING:
    import onnx
    import torch

    from ...routing.training import Floats, Rows

_FOLDS: Final = 3
"""Parts in which the words part predicts what it has not seen."""
_MOST_LOGARITHM: Final = 4.0
"""Largest logarithm of the slope of a part in a blend."""
_LARGEST_LOGIT: Final = 80.0
"""Logarithm whose exponential a 32-bit float can hold."""
_LEAST_LENGTH: Final = 1e-6
"""Divisor in place of the length of an empty vector."""
_OPERATORS: Final = 18
_FORMAT: Final = 9
"""Version of the file format: onnxruntime 1.20 reads it."""


@dataclass(frozen=True, slots=True)
class HeadParts:
    """A trained head."""

    agents: tuple[str, ...]
    prompts: int
    """It was trained on."""
    words: WordsPart
    likeness: LikenessPart | None
    """None: it was trained without embeddings."""
    classes: ClassLogits
    """Empty: it was trained without classes."""
    blends: tuple[Blend, ...]
    """Blends of the words with each choice of the other parts, for a prompt whose class is unknown or which is not embedded."""
    base: tuple[float, ...]
    """Mean outcome of each agent."""
    trust: float
    """Share of the head in the gain; prompt length has the rest."""


def train_head(examples: Examples, *, seed: int = 0) -> HeadParts:
    """Fit each part, and how they are put together, on what they say of prompts that they have not seen.

    Raises `ConfigError` for fewer than 20 prompts, or an agent whose outcomes are all missing or all the same.
    """
    examples.check()
    return fit_head(examples, seed=seed)


def fit_head(examples: Examples, *, seed: int) -> HeadParts:
    """Fit a head without checking the examples, as for the folds of a cross-validation."""
    import numpy

    features = Features.of(examples.prompts)
    folds = folds_of(examples.prompts, _FOLDS, seed)
    unseen = {HeadPart.WORDS: _unseen_words(features, examples.outcomes, folds)}
    alone = fit_blend(unseen, examples.outcomes)
    likeness: LikenessPart | None = None
    relative: Floats | None = None
    classes: ClassLogits = {}
    if examples.embeddings is not None:
        offset = unseen[HeadPart.WORDS] / numpy.float32(alone.temperature) + numpy.array(alone.bias, dtype=numpy.float32)
        fitted = fit_likeness(examples.embeddings, features.surface, examples.outcomes, offset, folds, seed)
        likeness, relative, unseen[HeadPart.LIKENESS] = fitted.part, fitted.relative, fitted.unseen
    if any(examples.classes):
        classes, unseen[HeadPart.CLASS] = fit_classes(examples.classes, examples.outcomes)
    blends = tuple(_blended(chosen, unseen, relative, examples.outcomes) for chosen in _choices(unseen))
    base = tuple(numpy.nanmean(examples.outcomes, axis=0).tolist())
    known = _relative_by_head(blends[-1], unseen, relative)
    wanted = examples.outcomes - examples.outcomes.mean(1, keepdims=True)
    return HeadParts(
        agents=tuple(examples.agents),
        prompts=len(examples.prompts),
        words=fit_words(features, examples.outcomes),
        likeness=likeness,
        classes=classes,
        blends=blends,
        base=base,
        trust=share_of(known, relative_by_length(examples.prompts, base), wanted, HEAD_PRIOR),
    )


def _blended(chosen: tuple[HeadPart, ...], parts: "Mapping[HeadPart, Floats]", relative: "Floats | None", outcomes: "Floats") -> Blend:
    """Fit the blend of some parts, with the ridge regression where the prompt is embedded. All was predicted without the prompt's
    outcomes."""
    blend = fit_blend({part: parts[part] for part in chosen}, outcomes)
    if relative is None or HeadPart.LIKENESS not in chosen:
        return blend
    share = share_of(relative, _relative_by_head(blend, parts, None), outcomes - outcomes.mean(1, keepdims=True))
    return blend.model_copy(update={"ridge": share})


def _relative_by_head(blend: Blend, parts: "Mapping[HeadPart, Floats]", relative: "Floats | None") -> "Floats":
    """Return each agent's probability less the mean over agents, by a blend of parts and, where it is given, the ridge regression."""
    chances = _chances(blend, parts)
    own: Floats = chances - chances.mean(1, keepdims=True)
    return own if relative is None else blend.ridge * relative + (1 - blend.ridge) * own


def _chances(blend: Blend, parts: "Mapping[HeadPart, Floats]") -> "Floats":
    """Return the probabilities of a blend of parts, of shape (prompts, agents)."""
    import numpy

    raw = sum(weight * parts[part] for part, weight in blend.weights.items())
    logits = raw / blend.temperature + numpy.array(blend.bias, dtype=numpy.float32)
    chances: Floats = 1 / (1 + numpy.exp(-numpy.clip(logits, -_LARGEST_LOGIT, _LARGEST_LOGIT)))
    return chances


def _unseen_words(features: Features, outcomes: "Floats", folds: "Rows") -> "Floats":
    """Return the words part's log-odds of each prompt, trained on the other folds."""
    import numpy

    logits = numpy.zeros(outcomes.shape, dtype=numpy.float32)
    for fold in range(_FOLDS):
        held, known = numpy.flatnonzero(folds == fold), numpy.flatnonzero(folds != fold)
        logits[held] = words_logits(fit_words(features.part(known), outcomes[known]), features.part(held))
    return logits


def _choices(parts: "Mapping[HeadPart, Floats]") -> list[tuple[HeadPart, ...]]:
    """Return the choices of parts: the words with none, each and all of the other available parts."""
    choices: list[tuple[HeadPart, ...]] = [(HeadPart.WORDS,)]
    for part in (HeadPart.LIKENESS, HeadPart.CLASS):
        if part in parts:
            choices += [(*chosen, part) for chosen in choices]
    return choices


def fit_blend(parts: "Mapping[HeadPart, Floats]", outcomes: "Floats") -> Blend:
    """Fit a blend on what the parts said of prompts that they had not seen, each of shape (prompts, agents); NaN where unknown."""
    import numpy
    import torch

    from .parts import errors, minimise

    inputs, wanted = torch.from_numpy(numpy.stack(list(parts.values()), axis=-1)), torch.from_numpy(outcomes)
    logarithms = torch.zeros(len(parts), requires_grad=True)
    bias = torch.zeros(outcomes.shape[1], requires_grad=True)

    def loss() -> "torch.Tensor":
        return errors((inputs * _slopes(logarithms)).sum(-1) + bias, wanted) + logarithms.square().sum()

    minimise([logarithms, bias], loss)
    slopes = dict(zip(parts, _slopes(logarithms.detach()).tolist(), strict=True))
    weights = {part: slope / slopes[HeadPart.WORDS] for part, slope in slopes.items()}
    return Blend(weights=weights, temperature=1 / slopes[HeadPart.WORDS], bias=tuple(bias.detach().tolist()))


def _slopes(logarithms: "torch.Tensor") -> "torch.Tensor":
    """Return bounded slopes: on few labels, a step of the search may go so far that they overflow."""
    slopes: torch.Tensor = (_MOST_LOGARITHM * (logarithms / _MOST_LOGARITHM).tanh()).exp()
    return slopes


def write_head(parts: HeadParts, folder: Path) -> None:
    """Write a head that `Head` loads.

    Raises `ConfigError` where onnx is not installed, or the folder cannot be written.
    """
    try:
        import onnx
    except ImportError as error:
        raise ConfigError("writing a head needs onnx", hint="pip install 'nearfar[train]'") from error
    card = HeadCard(
        embedder=NAME if parts.likeness is not None else None,
        agents=parts.agents,
        prompts=parts.prompts,
        familiar=parts.likeness.familiar if parts.likeness is not None else 0.0,
        classes=parts.classes,
        blends=parts.blends,
        base=parts.base,
        trust=parts.trust,
    )
    names = (CARD, WORDS) if parts.likeness is None else (CARD, WORDS, LIKENESS)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with ExitStack() as whole:  # no file takes its place before all are written: a full disk leaves the old head
            written = {name: whole.enter_context(replacing(folder / name)) for name in names}
            _save_words(parts.words, written[WORDS])
            if parts.likeness is not None:
                onnx.save(_likeness(parts.likeness), written[LIKENESS])
            checksums = {name: checksum(written[name]) for name in names if name != CARD}
            written[CARD].write_text(card.model_copy(update={"checksums": checksums}).model_dump_json(indent=2) + "\n", encoding="utf-8")
    except OSError as error:
        hint = hint_for(error, "name a folder that can be written")
        raise ConfigError(f"the head cannot be written to {folder}: {error}", hint=hint) from error


def _save_words(part: WordsPart, path: Path) -> None:
    import numpy

    # The surface is standardised and weighted in one step.
    slopes = part.surface / part.scale[:, None]
    numpy.savez(path, rarity=part.rarity, words=part.words, surface=slopes, bias=part.bias - part.centre @ slopes)


def _likeness(part: LikenessPart) -> "onnx.ModelProto":
    """Build the likeness model. It maps `embedding`, of shape (768,), and `surface`, of shape (measures,), to `corrections`, of shape
    (agents,), `similarity`, and `relative`, of shape (agents,)."""
    import numpy

    graph = _Graph()
    graph.give("embedding", numpy.float32, [EARLY_WIDTH])
    graph.give("surface", numpy.float32, [len(SURFACE)])
    products = graph.add("MatMul", "embedding", graph.constant("embeddings", part.embeddings.T))
    look = _standardised_look(graph, part)
    similar = _similarities(graph, part, products, look)
    distance = graph.add("Sub", similar, graph.constant("one", numpy.float32(1)))
    kernel = graph.add("Exp", graph.add("Div", distance, graph.constant("reach", numpy.float32(REACH))))
    graph.add("MatMul", kernel, graph.constant("weights", part.weights), name="corrections")
    gained = graph.add("MatMul", kernel, graph.constant("relative_weights", part.relative))
    graph.add("Add", gained, graph.constant("relative_mean", part.relative_mean), name="relative")
    lengths = numpy.maximum(numpy.linalg.norm(part.embeddings, axis=1), _LEAST_LENGTH)
    nearest = graph.constant("nearest", numpy.array([min(NEAREST, len(part.landmarks))], dtype=numpy.int64))
    values, _ = graph.add_many("TopK", graph.add("Div", products, graph.constant("lengths", lengths)), nearest, outputs=2, axis=0)
    graph.add("Div", graph.add("ReduceMean", values, keepdims=0), _length(graph, "embedding"), name="similarity")
    agents = part.weights.shape[1]
    return graph.model("likeness", corrections=[agents], similarity=[], relative=[agents])


def _standardised_look(graph: "_Graph", part: LikenessPart) -> str:
    """Add the surface of a prompt, standardised, bounded and weighted."""
    import numpy

    shifted = graph.add("Sub", "surface", graph.constant("surface_centre", part.surface_centre))
    bounds = (graph.constant(name, numpy.float32(bound)) for name, bound in (("low", -MOST_DEVIATIONS), ("high", MOST_DEVIATIONS)))
    clipped = graph.add("Clip", graph.add("Div", shifted, graph.constant("surface_scale", part.surface_scale)), *bounds)
    return graph.add("Mul", clipped, graph.constant("surface_weight", surface_weight(len(SURFACE))))


def _similarities(graph: "_Graph", part: LikenessPart, products: str, look: str) -> str:
    """Add the products of a prompt's vector with those of the landmarks, from the products of their embeddings.

    Those are needed for the familiarity as well. Most of the time goes into reading the embeddings of the landmarks, so it is done once.
    """
    import numpy

    centred = part.embeddings - part.centre
    scales = numpy.linalg.norm(part.landmarks[:, :EARLY_WIDTH], axis=1) / numpy.maximum(numpy.linalg.norm(centred, axis=1), _LEAST_LENGTH)
    centre = graph.constant("centre", part.centre)
    moved = graph.add("Sub", products, graph.constant("offsets", centred @ part.centre))
    moved = graph.add("Sub", moved, graph.add("MatMul", "embedding", centre))
    away = graph.add("Div", moved, _length(graph, graph.add("Sub", "embedding", centre)))
    by_meaning = graph.add("Mul", away, graph.constant("scales", scales))
    by_look = graph.add("MatMul", look, graph.constant("looks", part.landmarks[:, EARLY_WIDTH:].T))
    unit = graph.constant("unit", numpy.ones(1, dtype=numpy.float32))
    length = graph.add("ReduceL2", graph.add("Concat", unit, look, axis=0), keepdims=0)
    return graph.add("Div", graph.add("Add", by_meaning, by_look), length)


def _length(graph: "_Graph", vector: str) -> str:
    import numpy

    least = graph.constant(f"least.{vector}", numpy.float32(_LEAST_LENGTH))
    return graph.add("Max", graph.add("ReduceL2", vector, keepdims=0), least)


class _Graph:
    """A graph in the making. Values go by their names."""

    def __init__(self) -> None:
        self._nodes: list[Any] = []
        self._constants: list[Any] = []
        self._inputs: list[Any] = []

    def give(self, name: str, kind: Any, shape: list[str | int]) -> None:  # noqa: ANN401 - a type of numpy's
        import numpy
        from onnx import helper

        self._inputs.append(helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(numpy.dtype(kind)), shape))

    def add(self, operator: str, *inputs: str, name: str = "", **attributes: int) -> str:
        from onnx import helper

        name = name or f"{operator}.{len(self._nodes)}"
        self._nodes.append(helper.make_node(operator, list(inputs), [name], **attributes))
        return name

    def add_many(self, operator: str, *inputs: str, outputs: int, **attributes: int) -> list[str]:
        from onnx import helper

        names = [f"{operator}.{len(self._nodes)}.{place}" for place in range(outputs)]
        self._nodes.append(helper.make_node(operator, list(inputs), names, **attributes))
        return names

    def constant(self, name: str, values: Any) -> str:  # noqa: ANN401 - an array or a number of numpy's
        import numpy
        from onnx import numpy_helper

        # `ascontiguousarray` alone would make a number an array of one.
        self._constants.append(numpy_helper.from_array(numpy.ascontiguousarray(values).reshape(numpy.shape(values)), name))
        return name

    def model(self, name: str, **outputs: list[str | int]) -> "onnx.ModelProto":
        from onnx import TensorProto, checker, helper

        found = [helper.make_tensor_value_info(output, TensorProto.FLOAT, shape) for output, shape in outputs.items()]
        graph = helper.make_graph(self._nodes, name, self._inputs, found, self._constants)
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", _OPERATORS)], ir_version=_FORMAT)
        checker.check_model(model)
        return model
