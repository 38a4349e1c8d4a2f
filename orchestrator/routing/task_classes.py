"""The class of a new task, guessed from those of earlier tasks.

It is guessed by multinomial naive Bayes over the words of its prompt, in which names and numbers count as such, and its tools; a prompt
whose words the class has mostly not met belongs to none.
"""

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from math import exp, log
from typing import Final

from ..task.modes import NAME, NUMBER, Shape, TaskProfile
from .costs import lineage

SMOOTHING: Final = 0.2
"""Added to each feature's count in each class."""
LIKELY: Final = 0.02
"""Probability below which a class is left out of account."""
SURE: Final = 0.5
"""Probability that a class must have; else its parent is tried, which has the probability of all its classes together."""


@dataclass(slots=True)
class _Class:
    """The prompts seen of one class, with tools of one shape."""

    prompts: int = 0
    features: Counter[str] = field(default_factory=Counter)
    total: int = 0
    words: set[str] = field(default_factory=set)


@dataclass(frozen=True, slots=True)
class ClassGuess:
    """The class that a task seems to belong to."""

    name: str
    """The class as far as the guess is sure: `search/hops`, `search`, or empty."""
    probability: float
    familiarity: float
    """Share of the prompt's words that tasks of this class have used before."""
    shares: Mapping[str, float] = field(default_factory=dict)
    """The narrowest classes that it may be, and how probable each is among them."""


UNKNOWN: Final = ClassGuess("", 0.0, 0.0)


class TaskClasses:
    """The classes of the tasks seen so far."""

    def __init__(self) -> None:
        self._classes: defaultdict[Shape, dict[str, _Class]] = defaultdict(dict)
        """By the shape of the tools, then by name: one class may be met with several shapes."""
        self._seen: set[tuple[str, str, tuple[str, ...]]] = set()
        self._vocabulary: set[str] = set()

    def add(self, name: str, profile: TaskProfile) -> None:
        """Learn that a task is of a class; the same task under many configurations is one example."""
        example = (name, profile.prompt, profile.tools)
        if not name or not profile.prompt.strip() or example in self._seen:
            return
        self._seen.add(example)
        known = self._classes[profile.shape].setdefault(name, _Class())
        features = list(_features(profile))
        known.prompts += 1
        known.features.update(features)
        known.total += len(features)
        known.words.update(profile.words)
        self._vocabulary.update(features)

    def guess(self, profile: TaskProfile, *, minimum_familiarity: float) -> ClassGuess:
        """Return the class of a task; `UNKNOWN` where its words or tools are new."""
        scores = self._scores(profile)
        if not scores:
            return UNKNOWN
        probabilities = _probabilities(scores)
        name, probability = _deepest_sure(probabilities)
        familiarity = self._familiarity(name, profile)
        if not name or familiarity < minimum_familiarity:
            return UNKNOWN
        return ClassGuess(name, probability, familiarity, _shares(probabilities))

    def _scores(self, profile: TaskProfile) -> dict[str, float]:
        """Return the logarithms of the classes' probabilities, up to a constant. Words that no class has met are ignored."""
        features = [feature for feature in _features(profile) if feature in self._vocabulary]
        return {name: self._score(known, features) for name, known in self._of_shape(profile).items()}

    def _of_shape(self, profile: TaskProfile) -> Mapping[str, _Class]:
        return self._classes.get(profile.shape, {})

    def _score(self, known: _Class, features: Sequence[str]) -> float:
        norm = log(known.total + SMOOTHING * len(self._vocabulary))
        return log(known.prompts) + sum(log(known.features[feature] + SMOOTHING) - norm for feature in features)

    def _familiarity(self, name: str, profile: TaskProfile) -> float:
        words = set(profile.words) - {NAME, NUMBER}
        below = [known for other, known in self._of_shape(profile).items() if other == name or other.startswith(f"{name}/")]
        return sum(any(word in known.words for known in below) for word in words) / len(words) if words else 0.0


def _features(profile: TaskProfile) -> Iterator[str]:
    """Yield words, pairs of neighbouring words, word counts, the prompt's form, relations and parts, and the tools."""
    words = profile.words
    yield from words
    yield from (f"{first} {second}" for first, second in pairwise(("^", *words)))
    yield from (f"{count} x {word}" for word, count in Counter(words).items())
    yield f"form: {profile.form}"
    yield f"relations: {profile.relations}"
    yield f"parts: {profile.parts}"
    yield from (f"tool: {tool}" for tool in sorted(profile.tools))


def _probabilities(scores: Mapping[str, float]) -> dict[str, float]:
    best = max(scores.values())
    weights = {name: exp(score - best) for name, score in scores.items()}
    total = sum(weights.values())
    return {name: weight / total for name, weight in weights.items()}


def _shares(probabilities: Mapping[str, float]) -> dict[str, float]:
    likely = {name: probability for name, probability in probabilities.items() if probability >= LIKELY}
    total = sum(likely.values())
    return {name: probability / total for name, probability in likely.items()}


def _deepest_sure(probabilities: Mapping[str, float]) -> tuple[str, float]:
    """Return the narrowest class on the way to the likeliest one that is likely enough, with its probability; empty if none is."""
    together: defaultdict[str, float] = defaultdict(float)
    for name, probability in probabilities.items():
        for level in lineage(name):
            together[level] += probability
    likeliest = min(probabilities, key=lambda name: (-probabilities[name], name))
    for level in reversed(lineage(likeliest)):
        if together[level] >= SURE:
            return level, together[level]
    return "", 0.0
