"""Which prompts are put in the words of the shipped worlds."""

import re
from functools import lru_cache

from .apps import AppsWorld
from .names import SPLITS, names
from .search import SearchWorld
from .search.facts import RELATIONS

_KINDS = ("person", "company", "city", "country", "thing", "event", "note")
_SAMPLE = 400
"""Prompts of each world that its common words are taken from: all of them occur far more often than once in so many."""
_WORD = re.compile(r"[^\W\d_]+")


def understands(prompt: str) -> bool:
    """Tell whether a prompt has only words that the worlds use.

    Models trained in these worlds make nothing of any other; they may still fail on one that is put in their words.
    """
    words = _WORD.findall(prompt)
    return bool(words) and all(word in _vocabulary() for word in words)


@lru_cache(maxsize=1)
def _vocabulary() -> frozenset[str]:
    asked = [task.prompt for world in (SearchWorld(), AppsWorld()) for task in world.tasks(_SAMPLE, seed=0)]
    called = [name for kind in _KINDS for split in SPLITS for name in names(kind, split)]
    attributes = [name for relations in RELATIONS.values() for name in relations]
    return frozenset(_WORD.findall(" ".join([*asked, *called, *attributes])))
