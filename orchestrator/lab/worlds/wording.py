"""Which prompts are put in the words of the shipped worlds."""

import re
from collections.abc import Iterator
from functools import lru_cache

from .apps.world import AppsWorld
from .names import SPLITS, names
from .search.facts import RELATIONS
from .search.world import SearchWorld

_KINDS = ("person", "company", "city", "country", "thing", "event", "note")
_BATCHES = 16
_BATCH = 25
"""Prompts of each world that its common words are looked for in: in all together, every one of them occurs far more often than once."""
_WORD = re.compile(r"[^\W\d_]+")


def understands(prompt: str) -> bool:
    """Tell whether a prompt has only words that the worlds use.

    Models trained in these worlds make nothing of any other; they may still fail on one that is put in their words.
    """
    words = _WORD.findall(prompt)
    unknown = set(words) - _proper_words()
    return bool(words) and (not unknown or any(unknown <= known for known in _growing_vocabulary()))


@lru_cache(maxsize=1)
def _proper_words() -> frozenset[str]:
    called = [name for kind in _KINDS for split in SPLITS for name in names(kind, split)]
    attributes = [name for relations in RELATIONS.values() for name in relations]
    return frozenset(_WORD.findall(" ".join([*called, *attributes])))


def _growing_vocabulary() -> Iterator[set[str]]:
    """The words of more and more prompts: making them all takes a tenth of a second, which few prompts need."""
    known = set(_proper_words())
    for seed in range(_BATCHES):
        for world in (SearchWorld(), AppsWorld()):
            known.update(word for task in world.tasks(_BATCH, seed=seed) for word in _WORD.findall(task.prompt))
        yield known
