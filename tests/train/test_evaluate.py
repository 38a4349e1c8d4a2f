from __future__ import annotations

import math
from pathlib import Path

import pytest

pytest.importorskip("llama_cpp", reason="measuring models needs llama.cpp: pip install 'nearfar[llama]'")

from nearfar.orchestrator.worlds.lookup import SearchTask, SearchWorld
from train.evaluate import (
    Agent,
    Attempt,
    attempt,
    by_hops,
    cascade,
    choose_threshold,
    is_grounded,
    parse_call,
    step_confidence,
    summary,
)

MODELS = Path(__file__).parents[2] / "device" / "models"
TASK = SearchTask("1", "What is Mira Falk's sister?", "Elin Berg", 1)


def tried(right: bool, confidence: float, tokens: int = 100, grounded: bool = True) -> Attempt:
    answer = TASK.answer if right else "Ruth Silva"
    return Attempt(TASK, answer, right, grounded, confidence, tokens, turns=2)


def test_confidence_is_that_of_the_weakest_four_tokens() -> None:
    logs = [0.0, 0.0, math.log(0.5), math.log(0.5), 0.0, 0.0, 0.0]
    assert step_confidence(logs) == pytest.approx(0.5**0.5)


def test_a_short_step_is_judged_as_a_whole() -> None:
    assert step_confidence([math.log(0.25), 0.0]) == pytest.approx(0.5)
    assert step_confidence([]) == 0.0


@pytest.mark.parametrize(
    "text",
    [
        "Elin Berg",
        "<tool_call>{}</tool_call>",
        "<tool_call>[]</tool_call>",
        '<tool_call>{"name": "lookup", "arguments": {"entity": "Mira Falk"}}</tool_call>',
        '<tool_call>{"name": "lookup", "arguments": {"entity": 1, "attribute": "ceo"}}</tool_call>',
        '<tool_call>{"name": "delete", "arguments": {"entity": "Mira Falk", "attribute": "ceo"}}</tool_call>',
        '<tool_call>{"name": "lookup", "arguments": {"entity": "Mira Falk", "attribute": "ceo"}}',
    ],
)
def test_anything_but_one_whole_lookup_is_not_a_call(text: str) -> None:
    assert parse_call(text) is None


def test_a_lookup_is_read_back() -> None:
    text = '<tool_call>{"name": "lookup", "arguments": {"entity": "Mira Falk", "attribute": "ceo"}}</tool_call>'
    assert parse_call(text) == ("Mira Falk", "ceo")


def test_an_answer_is_grounded_only_in_what_was_found() -> None:
    assert is_grounded("Elin Berg", ["Jonas Holm", "Elin Berg"])
    assert not is_grounded("Elin Berg", ["nothing found for sister of Elin Berg"])
    assert not is_grounded("", ["Elin Berg"])


def test_the_cascade_asks_far_when_near_is_unsure_or_ungrounded() -> None:
    near = [tried(True, 0.99), tried(False, 0.5), tried(False, 0.99, grounded=False)]
    done = cascade(near, [tried(True, 1.0)] * 3, threshold=0.9)
    assert [one.escalated for one in done] == [False, True, True]
    assert [one.right for one in done] == [True, True, True]
    assert sum(one.far_tokens for one in done) == 200


def test_the_summary_relates_the_cascade_to_always_using_far() -> None:
    near = [tried(True, 0.99, tokens=50), tried(False, 0.5, tokens=50)]
    report = summary(near, [tried(True, 1.0)] * 2, threshold=0.9)
    assert (report["quality_share"], report["far_token_share"], report["all_token_share"]) == (1.0, 0.5, 1.0)
    assert by_hops([(1, True), (2, False)]) == {"all": 0.5, "1": 1.0, "2": 0.0}


def test_the_lowest_sufficient_threshold_is_chosen() -> None:
    near = [tried(True, 0.99), tried(False, 0.495)]
    assert choose_threshold(near, [tried(True, 1.0)] * 2) == 0.5
    assert choose_threshold(near, [tried(True, 1.0)] * 2, quality=0.5) == 0.0


def test_near_solves_one_lookup_in_the_real_runtime() -> None:
    world = SearchWorld(1, "test")
    agent = Agent(MODELS / "near.gguf")
    done = [attempt(agent, task, world) for task in world.tasks(10, {1: 1.0})]
    assert sum(one.right for one in done) >= 8
    assert all(0.0 < one.confidence <= 1.0 for one in done)
    assert all(one.grounded and one.turns == 2 for one in done if one.right)
