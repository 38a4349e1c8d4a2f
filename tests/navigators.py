"""Navigators of one layer, which tests write by hand."""

from collections.abc import Mapping
from pathlib import Path

from nearfar.orchestrator.routing.navigator import NavigatorCard
from nearfar.orchestrator.task.events import EVIDENCE, Move


def evidence(**figures: float) -> list[float]:
    """The evidence of a state: 0 but for these figures, whose names have _ for each space."""
    known = {name.replace("_", " "): figure for name, figure in figures.items()}
    assert set(known) <= set(EVIDENCE), "a figure is misspelt"
    return [known.get(name, 0.0) for name in EVIDENCE]


def card_of(weights: Mapping[Move, list[float]], alone: Mapping[Move, float]) -> NavigatorCard:
    """A card in which each move is worth a weighted sum of the evidence."""
    rows = tuple((*weights.get(move, evidence()), alone.get(move, 0.0)) for move in Move)
    zeros, ones = (0.0,) * len(EVIDENCE), (1.0,) * len(EVIDENCE)
    return NavigatorCard(centre=zeros, scale=ones, layers=(rows,), call_price=0.1, runs=1)


def written(folder: Path, card: NavigatorCard) -> Path:
    """The file of a card."""
    path = folder / "navigator.json"
    path.write_text(card.model_dump_json(), encoding="utf-8")
    return path
