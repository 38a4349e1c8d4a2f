"""The learned head of the router: the probability that each agent gets a prompt right, before any token is generated.

Three parts look at a task. The *words* part is a logistic regression over hashed n-grams (weighted by how rare they were in training, and
scaled to unit length) and the surface of the prompt. The *likeness* part corrects it by how the agents did on prompts whose embeddings and
surface are near. The *class* part knows how they did on tasks of the same class. The second is an ONNX model. Without an embedder, or for
a class that training did not meet, the others do without, with weights of their own.

A ridge regression of the gain is blended in: of how much better each agent does than the others on such a prompt, by the same likeness. It
needs fewer labels than a regression of each agent's success, since what is hard for all of them cancels out.
"""

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from enum import StrEnum
from itertools import combinations
from math import exp, log1p, sqrt
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol
from zipfile import BadZipFile
from zlib import crc32

from pydantic import Field, ValidationError, model_validator

from ...protocols import ConfigError
from ...protocols.steps import Value
from ..util.embedding import NAME, session
from .costs import lineage

if TYPE_CHECKING:
    import numpy
    from numpy.typing import NDArray

    Vector = NDArray[numpy.float32]


VERSION: Final = "hashed/4"
"""Version of the features; a head trained on another version cannot be used."""
BUCKETS: Final = 1 << 17
"""Buckets of the hashing trick (arXiv 0902.2206): n-grams that share one share a weight."""
WINDOW: Final = 1000
"""Characters read from the head and from the tail of a prompt that is longer than both."""

SURFACE: Final = (
    "characters",
    "words",
    "lines",
    "digits",
    "capitals",
    "signs",
    "distinct words",
    "length of a word",
    "formulas",
    "code",
    "questions",
)
"""Names of the measures of `surface`, in its order."""

_WORD: Final = re.compile(rb"[a-z0-9_\x80-\xff]+|[^\sa-z0-9_\x80-\xff]")
_SUM: Final = re.compile(r"\d\s*[-+*/=]\s*\d")
_GROUPS: Final = {
    b"0": b"0123456789",
    b"A": b"ABCDEFGHIJKLMNOPQRSTUVWXYZ",
    b"{": b"{}();=<>_",
    b"^": b"\\^$",
    b"?": b"?",
    b".": b"!\"#%&'*+,-./:@[]`|~",
}
"""Digits, capitals, signs of code, of formulas and of questions, and other signs, by one that stands for the group."""
_KINDS: Final = bytes.maketrans(b"".join(_GROUPS.values()), b"".join(len(group) * kind for kind, group in _GROUPS.items()))


def windowed(text: str) -> str:
    """Return the head and the tail of a long text, the whole of a short one."""
    return text if len(text) <= 2 * WINDOW else f"{text[:WINDOW]} {text[-WINDOW:]}"


def hashed(text: str) -> "NDArray[numpy.int64]":
    """Hash the text's words and pairs of neighbouring words. Return the bucket of each, once however often it occurs."""
    import numpy

    words = _WORD.findall(windowed(text).lower().encode("utf-8", "replace"))
    sums = [*map(crc32, words)]
    # A checksum can be continued: this is that of both words with a space between them. No word holds a line break.
    grams = {*sums, *map(crc32, b"\n ".join(words).split(b"\n")[1:], sums)}
    found: NDArray[numpy.int64] = numpy.fromiter(grams, numpy.int64, len(grams)) % BUCKETS
    return found


def surface(text: str) -> tuple[float, ...]:
    """Measure what `SURFACE` names: counts as logarithms, else shares of characters or words; of a long text, of its windows."""
    seen = windowed(text)
    raw = seen.encode("utf-8", "replace")
    # Several counts of one character are far faster than one of several characters.
    digits, capitals, code, formulas, questions, others = map(raw.translate(_KINDS).count, _GROUPS)
    size = max(len(raw), 1)
    words = seen.split()
    count = max(len(words), 1)
    sums = len(_SUM.findall(seen)) if digits or not seen.isascii() else 0  # a search takes far longer than a count
    return (
        log1p(len(text)),
        log1p(len(words)),
        log1p(raw.count(b"\n")),
        digits / size,
        capitals / size,
        (code + formulas + questions + others) / size,
        len(set(words)) / count,
        len("".join(words)) / count,
        (formulas + sums) / count,
        (code + raw.count(b"::")) / count,
        seen.count("?") / count,
    )


class HeadPart(StrEnum):
    """A part of a head, by the input that it looks at."""

    WORDS = "words"
    """N-grams and the surface of a prompt. Always there."""
    LIKENESS = "likeness"
    """How the agents did on prompts like this one."""
    CLASS = "class"
    """How they did on tasks of the same class."""


class Blend(Value):
    """The weights of some of the parts, and their calibration (temperature scaling: Guo et al., arXiv 1706.04599).

    All agents share the weights and the temperature: with their own, the difference between two agents would be that of their calibrations.
    """

    weights: Mapping[HeadPart, float] = Field(min_length=1)
    """Weight of each part; that of the words is 1."""
    temperature: float = Field(gt=0)
    """Divisor of the weighted log-odds; more than 1 where the parts are overconfident."""
    bias: tuple[float, ...] = Field(min_length=1)
    """Added for each agent, in log-odds."""
    ridge: float = Field(default=0.0, ge=0, le=1)
    """Share of the ridge regression in the differences between agents; the parts have the rest."""

    def raw(self, logits: Mapping[HeadPart, Sequence[float]]) -> list[float]:
        """Return each agent's weighted log-odds, before calibration."""
        sums = [0.0] * len(self.bias)
        for part, weight in self.weights.items():
            for place, logit in enumerate(logits[part]):
                sums[place] += weight * logit
        return sums

    def calibrated(self, raw: Sequence[float]) -> list[float]:
        """Return the agents' calibrated probabilities."""
        return [sigmoid(logit / self.temperature + bias) for logit, bias in zip(raw, self.bias, strict=True)]


def sigmoid(logit: float) -> float:
    """Convert log-odds to a probability."""
    return 1 / (1 + exp(-min(max(logit, -30.0), 30.0)))


WORDS: Final = "words.npz"
LIKENESS: Final = "likeness.onnx"
CARD: Final = "head.json"
_TRAIN: Final = "nearfar policy train writes one"


class HeadCard(Value):
    """The card of a head, `head.json`: agents, embedder, classes and blends that it was trained with."""

    features: str = VERSION
    embedder: str | None
    """Embedder of the likeness part; None: the head has no likeness part."""
    agents: tuple[str, ...] = Field(min_length=1)
    """Whose success it predicts, in the order of its outputs."""
    prompts: int = Field(gt=0)
    """It was trained on."""
    familiar: float = 0.0
    """Similarity to the nearest training prompts, below which a prompt is unlike all of them."""
    classes: Mapping[str, tuple[float, ...]] = Field(default_factory=dict)
    """Log-odds of each agent, by class."""
    blends: tuple[Blend, ...] = Field(min_length=1)
    """One for each choice of parts."""
    base: tuple[float, ...] = Field(min_length=1)
    """Mean outcome of each agent in training: all that is known of a prompt that the head cannot judge."""
    trust: float = Field(default=1.0, ge=0, le=1)
    """Share of the head in the gain of the far side, before any outcome; prompt length has the rest."""
    checksums: Mapping[str, str] = Field(default_factory=dict)
    """SHA-256 of the other files of the head, by name: training that is killed may leave files of two heads."""

    @model_validator(mode="after")
    def _all_are_of_the_same_agents(self) -> "HeadCard":
        columns = [self.base, *self.classes.values(), *(blend.bias for blend in self.blends)]
        if any(len(column) != len(self.agents) for column in columns):
            raise ValueError("a class or a blend is of more or fewer agents than the head")
        return self

    @model_validator(mode="after")
    def _every_choice_has_its_blend(self) -> "HeadCard":
        others = [(HeadPart.LIKENESS, self.embedder is not None), (HeadPart.CLASS, bool(self.classes))]
        there = [part for part, is_there in others if is_there]
        wanted = {frozenset((HeadPart.WORDS, *chosen)) for size in range(len(there) + 1) for chosen in combinations(there, size)}
        if {frozenset(blend.weights) for blend in self.blends} != wanted:
            raise ValueError("the head has not one blend for each choice of its parts")
        return self


class Prediction(NamedTuple):
    """A head's prediction for one task."""

    probabilities: Mapping[str, float]
    """Probability that an agent gets the task right, by its name."""
    similarity: float | None
    """Mean cosine similarity to the nearest of the remembered training prompts; None: there was no embedder."""
    is_familiar: bool
    """The prompt is like those of the training data, or of a class that they had. Else outcomes have yet to show what the head is worth."""


class Sight(NamedTuple):
    """A head's view of one task, before calibration."""

    blend: Blend
    """Blend of the parts that had a prediction."""
    raw: Sequence[float]
    """Their weighted log-odds for each agent."""
    similarity: float | None
    relative: Sequence[float] = ()
    """Outcome of each agent less the mean over agents, as the ridge regression predicts it; empty: the prompt was not embedded."""

    def probabilities(self) -> list[float]:
        """Return each agent's calibrated probability, with the blended differences between agents."""
        found = self.blend.calibrated(self.raw)
        return with_relative(found, self.relative, self.blend.ridge) if self.relative else found


_LEAST_LENGTH: Final = 1e-6
"""Divisor of the n-grams of an empty prompt."""
LEAST_CHANCE: Final = 1e-3
"""Least probability that differences between agents may lead to; the greatest is 1 less that."""


def with_relative(probabilities: Sequence[float], relative: Sequence[float], share: float) -> list[float]:
    """Return probabilities whose differences are blends of their own and of those between the `relative` outcomes, which have the `share`.

    The mean over agents stays, unless a probability would leave 0 to 1: then all move together.
    """
    mean = sum(probabilities) / len(probabilities)
    wanted = [(1 - share) * (own - mean) + share * other for own, other in zip(probabilities, relative, strict=True)]
    middle = min(max(mean, LEAST_CHANCE - min(wanted)), 1 - LEAST_CHANCE - max(wanted))
    return [min(max(middle + each, LEAST_CHANCE), 1 - LEAST_CHANCE) for each in wanted]


@dataclass(frozen=True, slots=True)
class Words:
    """The words part. It is computed by numpy: on so few numbers, calling onnxruntime takes several times as long."""

    rarity: "Vector"
    """(buckets,): what an n-gram counts by how rare it was."""
    words: "Vector"
    """(buckets, agents)."""
    surface: "Vector"
    """(measures, agents)."""
    bias: "Vector"
    """(agents,)."""

    def logits(self, buckets: "NDArray[numpy.int64]", looks: "Vector") -> list[float]:
        """Return each agent's log-odds for n-grams, which are scaled to unit length, and the measures of the surface."""
        weighted = self.rarity.take(buckets)
        length = max(sqrt(weighted @ weighted), _LEAST_LENGTH)
        found: list[float] = (weighted @ self.words.take(buckets, axis=0) / length + looks @ self.surface + self.bias).tolist()
        return found


class EmbedsText(Protocol):
    """Anything that turns a text into the vector that `Embedder.early` makes of it."""

    def early(self, text: str) -> "Vector": ...


class Head:
    """A trained head, loaded from its folder. Calls may come from any thread."""

    def __init__(self, folder: Path, embedder: EmbedsText | None = None) -> None:
        """Raises `ConfigError` where the folder holds no head, or one of another version, or onnxruntime is not installed."""
        self.card = read_card(folder)
        self.base = dict(zip(self.card.agents, self.card.base, strict=True))
        """Mean outcome of each agent in training, by its name."""
        self._blends = {frozenset(blend.weights): blend for blend in self.card.blends}
        self._embedder = embedder if self.card.embedder is not None else None
        self._words = read_words(folder / WORDS, agents=len(self.card.agents))
        self._check(folder / WORDS)
        self._likeness = self._loaded(folder / LIKENESS) if self._embedder is not None else None

    def require(self, agents: Sequence[str]) -> None:
        """Raise `ConfigError` where the head was trained for other agents than these."""
        unknown = [agent for agent in agents if agent not in self.base]
        if unknown:
            raise ConfigError(
                f"the head knows {', '.join(self.card.agents)} and not {', '.join(sorted(unknown))}",
                hint="train one on traces of these agents: nearfar policy train",
            )

    def predict(self, prompt: str, task_class: str = "") -> Prediction:
        """Look at a task: any text, and its class from coarse to fine (`search/hops`), or nothing where it is unknown."""
        seen = self.look(prompt, task_class)
        return Prediction(
            probabilities=dict(zip(self.card.agents, seen.probabilities(), strict=True)),
            similarity=seen.similarity,
            is_familiar=seen.similarity is None or seen.similarity >= self.card.familiar or HeadPart.CLASS in seen.blend.weights,
        )

    def look(self, prompt: str, task_class: str = "") -> Sight:
        """Run the parts of the head on a task, without calibration."""
        import numpy

        looks = numpy.array(surface(prompt), dtype=numpy.float32)
        logits: dict[HeadPart, Sequence[float]] = {HeadPart.WORDS: self._words.logits(hashed(prompt), looks)}
        similarity: float | None = None
        relative: Sequence[float] = ()
        if self._likeness is not None and self._embedder is not None:
            corrections, near, gained = self._likeness.run(None, {"embedding": self._embedder.early(prompt), "surface": looks})
            logits[HeadPart.LIKENESS], similarity, relative = corrections.tolist(), float(near), gained.tolist()
        if (known := self._of_class(task_class)) is not None:
            logits[HeadPart.CLASS] = known
        blend = self._blends[frozenset(logits)]
        return Sight(blend, blend.raw(logits), similarity, relative)

    def _loaded(self, path: Path) -> Any:  # noqa: ANN401 - onnxruntime carries no types
        try:
            found = session(path.read_bytes(), str(path))
        except OSError as error:
            raise ConfigError(f"{path} cannot be read: {error}", hint=_TRAIN) from error
        if found.get_outputs()[0].shape != [len(self.card.agents)]:
            raise _of_another_head(path)
        self._check(path)
        return found

    def _check(self, path: Path) -> None:
        """Raise `ConfigError` if the file was written with another card. A card without its checksum takes any."""
        expected = self.card.checksums.get(path.name)
        if expected is not None and checksum(path) != expected:
            raise _of_another_head(path)

    def _of_class(self, name: str) -> Sequence[float] | None:
        """Return the log-odds of the narrowest class on the way to this one that training met."""
        known = self.card.classes
        return next((known[level] for level in reversed(lineage(name)) if level in known), None)


def checksum(path: Path) -> str:
    """Return the SHA-256 of a file."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _of_another_head(path: Path) -> ConfigError:
    return ConfigError(f"{path} and {CARD} in the same folder are of different heads", hint=_TRAIN)


def read_words(path: Path, *, agents: int) -> Words:
    """Raises `ConfigError` where there is no words part, one that is damaged or for another number of agents, or numpy is not installed."""
    try:
        import numpy
    except ImportError as error:
        raise ConfigError("a head needs numpy", hint="pip install 'nearfar[router]'") from error
    try:
        with path.open("rb") as file, numpy.load(file, allow_pickle=False) as arrays:
            found = Words(*(arrays[each.name].astype(numpy.float32) for each in fields(Words)))
    except (OSError, EOFError, KeyError, ValueError, BadZipFile) as error:
        raise ConfigError(f"{path} cannot be read: {error}", hint=_TRAIN) from error
    shapes = {"rarity": (BUCKETS,), "words": (BUCKETS, agents), "surface": (len(SURFACE), agents), "bias": (agents,)}
    if any(getattr(found, name).shape != shape for name, shape in shapes.items()):
        raise _of_another_head(path)
    return found


def read_card(folder: Path) -> HeadCard:
    """Raises `ConfigError` where there is none, one that contradicts itself, or one of another version."""
    try:
        card = HeadCard.model_validate_json((folder / CARD).read_bytes())
    except (OSError, ValidationError) as error:
        raise ConfigError(f"{folder} holds no head of the router: {CARD} is missing or damaged", hint=_TRAIN) from error
    for kind, found, expected in (("features", card.features, VERSION), ("embedder", card.embedder or NAME, NAME)):
        if found != expected:
            raise ConfigError(f"the head in {folder} was trained on {kind} {found!r}, not {expected!r}", hint="train it again")
    return card
