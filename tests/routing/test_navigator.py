"""A navigator: its file, the moves that it may choose, and chance."""

import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from navigators import card_of, evidence, written
from pydantic import ValidationError

from nearfar import ConfigError, Side
from nearfar.orchestrator.routing.navigator import Navigator, NavigatorCard, allowed_moves, navigated
from nearfar.orchestrator.routing.policy_check import findings
from nearfar.orchestrator.task.events import EVIDENCE, Move
from nearfar.orchestrator.task.policy import Policy

CARD = card_of({Move.PLAN: evidence(words_of_the_prompt_that_are_not=1.0)}, {Move.STEP: 1.5, Move.CHECK: 1.0})


def test_the_move_of_the_greatest_worth_is_chosen() -> None:
    navigator = Navigator(CARD)
    for left, move in ((1.0, Move.STEP), (2.0, Move.PLAN)):
        chosen = navigated(navigator, evidence(words_of_the_prompt_that_are_not=left), explore=0)
        assert (chosen.move, chosen.probability) == (move, 1.0)


def test_a_figure_far_from_what_was_recorded_counts_for_no_more_than_four_deviations() -> None:
    worth = Navigator(CARD).worth(evidence(words_of_the_prompt_that_are_not=1e9))
    assert worth[Move.PLAN] == 4.0


def test_a_budget_has_a_move_that_asks_the_far_side_bring_more() -> None:
    seen = evidence(words_of_the_prompt_that_are_not=2.0)
    assert navigated(Navigator(CARD), seen, explore=0, asked=0.6).move is Move.STEP


@pytest.mark.parametrize("figure", ["has_a_plan", "has_changed_something"])
def test_a_task_is_planned_once_and_before_anything_was_changed(figure: str) -> None:
    assert Move.PLAN in allowed_moves(evidence())
    seen = evidence(words_of_the_prompt_that_are_not=3.0, **{figure: 1.0})
    assert Move.PLAN not in allowed_moves(seen)
    assert navigated(Navigator(CARD), seen, explore=0).move is Move.STEP


@pytest.mark.parametrize("navigator", [None, Navigator(CARD)], ids=["chance alone", "a navigator"])
def test_moves_come_as_often_as_their_probability_says(navigator: Navigator | None) -> None:
    random.seed(7)
    draws = [navigated(navigator, evidence(), explore=0.5) for _ in range(4000)]
    told = {each.move: each.probability for each in draws}
    assert sum(told.values()) == pytest.approx(1)
    assert all(Counter(each.move for each in draws)[move] / 4000 == pytest.approx(told[move], abs=0.03) for move in Move)


@pytest.mark.parametrize(
    "change",
    [
        {"version": "navigator/2"},
        {"evidence": ("mood", *EVIDENCE[1:])},
        {"centre": (0.0,)},
        {"scale": (1e-300,) * len(EVIDENCE)},
        {"layers": (((1e4,) * (len(EVIDENCE) + 1),), *(((1e4, 1e4),),) * 99, ((1.0, 0.0),) * len(Move))},
        {"scale": (0.0,) * len(EVIDENCE)},
        {"layers": (CARD.layers[0][:2],)},
        {"layers": (((0.0,) * 4,) * 3,)},
        {"layers": ((), ((0.0,),) * 3)},
        {"layers": (((0.0,) * (len(EVIDENCE) + 1),) * 200, ((0.0,) * 201,) * 3)},
    ],
    ids=["version", "evidence", "centre", "a tiny scale", "many layers", "scale", "moves", "width", "an empty layer", "3,000 weights"],
)
def test_a_card_that_does_not_fit_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        NavigatorCard.model_validate({**CARD.model_dump(), **change})


@pytest.mark.parametrize("content", [None, b"", b"{}", b"[" * 2_000_000], ids=["missing", "empty", "another", "large"])
def test_a_file_that_holds_no_navigator_is_a_configuration_error(content: bytes | None, tmp_path: Path) -> None:
    path = tmp_path / "navigator.json"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ConfigError, match="holds no navigator") as caught:
        Navigator.load(path)
    assert "sweep" in str(caught.value.hint)


def test_the_check_of_a_policy_reads_the_navigator(tmp_path: Path) -> None:
    policy = Policy.model_validate({"strategy": "pevr", "supervision": {"navigator": written(tmp_path, CARD)}})
    agents = {"near": Side.NEAR, "far": Side.FAR}
    assert not [found for found in findings(policy, agents) if found.where == "policy.supervision.navigator"]
    (tmp_path / "navigator.json").unlink()
    assert [found for found in findings(policy, agents) if found.where == "policy.supervision.navigator"]
