"""`World`: tasks, the environment they are worked on in, and how an outcome is graded. Implement it to measure on tasks of your own. The
shipped worlds are made of names: two words each, shared by both splits, in combinations that are not. A hash of the name decides which
split may use it, so a model trained on the "train" split meets only unseen names in the "test" split.
"""

import hashlib
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Final, Literal, Protocol, runtime_checkable

from pydantic import Field

from ....protocols import Agent
from ....protocols.steps import Value
from ...task.tools import Tool

Split = Literal["train", "test"]
SPLITS: Final[tuple[Split, ...]] = ("train", "test")
_TEST_SHARE: Final = 0.2
_WORDS: Final[Mapping[str, tuple[str, str]]] = {
    "person": (
        (
            "Mira Tomas Elin Jonas Ruth Pavel Ines Oskar Lena Hugo Vera Marek Anya Felix Nora Ivan Clara "
            "Emil Dora Stefan Greta Anton Irma Lukas Tess Viktor Alma Boris Edith Conrad Maya Otto Sonja "
            "Albert Livia Bruno Hanna Leo Petra Samuel"
        ),
        (
            "Falk Berg Novak Lind Weiss Orlov Silva Holm Kramer Duarte Voss Nemec Aalto Brandt Costa Dahl "
            "Engel Farkas Gruber Hansen Ivanov Jansen Keller Larsen Moreau Nilsen Olsen Petrov Quinn Rossi "
            "Stark Tanaka Urban Vogel Winter Young Zeman Marsh Pike Thorn"
        ),
    ),
    "company": (
        (
            "Orbix Lumen Vertex Halcyon Quanta Nimbus Cobalt Zephyr Aurora Beacon Crestline Delta Ember "
            "Fathom Granite Horizon Ionic Juniper Kestrel Lattice Meridian Northwind Onyx Pinnacle Quartz "
            "Redwood Summit Tidal Umbra Vantage"
        ),
        "Labs Works Group Systems Foods Mills Press Motors Freight Optics",
    ),
    "city": (
        "Port New East West Upper Lower Saint Fort Lake Mount",
        (
            "Alder Bram Corvin Dunmore Elster Farrow Galen Hollis Istria Jarrow Kelso Lorne Merrow Norden "
            "Oslen Parma Querin Ravel Selby Torren Ulmar Verin Wexley Yarrow Zadar Ashby Birk Calder Doran "
            "Esker"
        ),
    ),
    "country": (
        ("Velden Sorra Kaltia Morvan Tavira Ostrava Belmar Carinth Drusia Estova Ferrin Galdor Helvar Istmar Jutria Korvia"),
        "Republic Kingdom Union Isles League Federation",
    ),
    "thing": (
        ("Amber Silent Crimson Hollow Golden Paper Velvet Frozen Copper Gentle Broken Silver Wooden Distant Painted Marble"),
        ("Kettle Lantern Compass Anchor Violin Mirror Falcon Garden Bridge Ladder Candle Feather Hammer Engine Basket Window"),
    ),
    "event": (
        ("Spring Budget Annual Weekly Harvest Winter Staff Board Summer Project Team Autumn"),
        ("Review Lunch Walk Concert Meeting Workshop Dinner Call Party Lesson Visit Rehearsal"),
    ),
    "note": (
        ("Blue Green Urgent Private Travel Kitchen Office Weekend Music Sports School Family"),
        ("List Plan Idea Code Number Budget Fee Draft Record Sheet Memo File"),
    ),
}


class WorldTask(Value):
    """One task of a world."""

    identifier: str = Field(min_length=1)
    """Names the same task in every process and every run."""
    prompt: str = Field(min_length=1)
    """Text that the agents are given."""
    kind: str
    """Its class, for comparing like with like: `hops`, `payment` ..."""
    difficulty: int = Field(ge=1)
    """1 is the easiest of its world."""
    context: str | None = None
    """A long text that the task is about, which `minions` keep on the device and other strategies put behind the prompt."""


class Grade(Value):
    """How well a task was done."""

    success: bool
    """The task was done."""
    score: float = Field(ge=0, le=1)
    """Partial credit: 1 is perfect."""
    measures: Mapping[str, float] = {}
    """The world's own figures by name, such as `exact_match` and `f1`, or `test_pass_ratio`."""


@runtime_checkable
class Episode(Protocol):
    """One task being worked on, with a state of its own."""

    @property
    def tools(self) -> Sequence[Tool]:
        """Tools that the agents may call; they act on this episode's state."""
        ...

    def grade(self, answer: str) -> Grade:
        """Grade the final answer together with the state that the tools left behind."""
        ...

    def close(self) -> None:
        """Free what the episode holds."""
        ...


@runtime_checkable
class World(Protocol):
    """A source of tasks. The same arguments always give the same tasks."""

    @property
    def name(self) -> str: ...

    def tasks(self, count: int, seed: int) -> Sequence[WorldTask]:
        """Draw `count` tasks."""
        ...

    def reset(self, task: WorldTask) -> Episode:
        """Start over on a task that this world drew. Raises a `NearfarError` where it cannot."""
        ...


@runtime_checkable
class SolvableWorld(World, Protocol):
    """A world that knows its own solutions."""

    def oracle(self) -> Agent:
        """Return a far supervisor that plans, verifies, replans and advises by the world's own solver: a ceiling, not a model."""
        ...


def split_of(name: str) -> Split:
    """Return the only split in which a name may occur."""
    digest = hashlib.sha256(name.encode()).digest()
    return "test" if digest[0] < 256 * _TEST_SHARE else "train"


@lru_cache(maxsize=32)
def names(kind: str, split: Split) -> tuple[str, ...]:
    """Return every name of a kind that a split may use."""
    firsts, seconds = (words.split() for words in _WORDS[kind])
    combinations = (f"{first} {second}" for first in firsts for second in seconds)
    return tuple(name for name in combinations if split_of(name) == split)
