"""Names that the worlds are made of. Every name is two words; the words are shared by both splits, the combinations are not.

A hash of the name decides which split may use it, so a model trained on the "train" split meets only unseen names in the "test" split.
"""

import hashlib
from collections.abc import Mapping
from functools import lru_cache
from typing import Final

from .world import Split

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
