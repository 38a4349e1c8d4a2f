"""Classes of tasks: the class of a new task, guessed from those of earlier ones, and how far a head is to be believed on a class.

A class is guessed by multinomial naive Bayes over a task's tools and the words of its prompt, in which names and numbers count as such; a
prompt whose words the class has mostly not met belongs to none.

A head and prompt length predict every outcome; the difference of their logarithmic losses says which of them was nearer. Two experts are
weighted by how well they predicted, as in Bayesian model averaging (Hoeting et al. 1999); here by a mean over outcomes, in which the wider
class counts for some, so that a few outcomes never decide and old ones fade.
"""

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from math import exp, log
from threading import Lock
from typing import Final

from ..task.modes import NAME, NUMBER, Shape, TaskProfile
from .costs import lineage

SMOOTHING: Final = 0.2
"""Added to each feature's count in each class."""
LIKELY: Final = 0.02
"""Probability below which a class is left out of account."""
SURE: Final = 0.5
"""Probability that a class must have; else its parent is tried, which has the probability of all its classes together."""
CREDIBILITY: Final = 20.0
"""Outcomes that the wider class counts for; of all tasks together, outcomes that tell neither for nor against the head."""
STRENGTH: Final = 30.0
"""Log-odds of the head's share for each nat by which it was nearer to an outcome, on average. A good head is some hundredths nearer."""
HALF_LIFE: Final = 2000.0
"""Outcomes after which one counts half."""
_LEAST: Final = 0.02
"""Least share that a head starts with, and 1 less the greatest."""
_LEAST_CHANCE: Final = 0.01
"""Probability as which one of 0 counts, so that a single surprise is bounded."""


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


@dataclass(slots=True)
class _Record:
    """Outcomes of a class and of those inside it."""

    outcomes: float = 0.0
    """Faded."""
    lead: float = 0.0
    """By how many nats the head was nearer, summed over them."""


@dataclass(slots=True)
class Familiarity:
    """The record of one head. Calls may come from any thread."""

    _records: dict[str, _Record] = field(default_factory=dict)
    _lock: Lock = field(default_factory=Lock)

    def share(self, task_class: str, start: float) -> float:
        """Return the share of the head in a prediction, 0 to 1; prompt length has the rest. A class never met inherits from the wider one.

        `start`: its share before any outcome.
        """
        inner = min(max(start, _LEAST), 1 - _LEAST)
        odds = log(inner / (1 - inner)) + STRENGTH * self.lead(task_class)
        return 1 / (1 + exp(-odds))

    def lead(self, task_class: str) -> float:
        """Return by how many nats the head was nearer to an outcome of the class, on average; negative where length was."""
        mean = 0.0
        with self._lock:
            for name in _path(task_class):
                record = self._records.get(name, _NOTHING)
                mean = (CREDIBILITY * mean + record.lead) / (CREDIBILITY + record.outcomes)
        return mean

    def learn(self, task_class: str, *, by_head: float, by_length: float, outcome: float) -> None:
        """Take in the outcome of a task and the probability of success that each had predicted, all 0 to 1."""
        lead = _loss(by_length, outcome) - _loss(by_head, outcome)
        kept = 0.5 ** (1 / HALF_LIFE)
        with self._lock:
            for name in _path(task_class):
                record = self._records.setdefault(name, _Record())
                record.outcomes = kept * record.outcomes + 1
                record.lead = kept * record.lead + lead


_NOTHING: Final = _Record()


def _path(task_class: str) -> tuple[str, ...]:
    """Return a class and those above it, the widest first; the class of all tasks has the empty name."""
    return ("", *lineage(task_class))


def _loss(probability: float, outcome: float) -> float:
    """Return the logarithmic loss, in nats."""
    inner = min(max(probability, _LEAST_CHANCE), 1 - _LEAST_CHANCE)
    return -(outcome * log(inner) + (1 - outcome) * log(1 - inner))
