from __future__ import annotations

import math
from pathlib import Path

import pytest
from llama_engine import needs_llama

pytest.importorskip("tokenizers", reason="training data needs tokenizers: pip install 'nearfar[train]'")

from train.evaluate import Model, Solved, by_kind, execution, parse_call, step_confidence, supervision

MODELS = Path(__file__).parents[2] / "device" / "models"


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
        '<tool_call>{"name": "open", "arguments": "Mira Falk"}</tool_call>',
        '<tool_call>{"name": "open", "arguments": {"title": "Mira Falk"}}',
    ],
)
def test_anything_but_one_whole_call_is_not_a_call(text: str) -> None:
    assert parse_call(text) is None


def test_a_call_is_read_back() -> None:
    call = parse_call('<tool_call>{"name": "open", "arguments": {"title": "Mira Falk"}}</tool_call>')
    assert call is not None
    assert (call.name, call.arguments) == ("open", {"title": "Mira Falk"})


def test_shares_are_given_over_all_tasks_and_by_kind() -> None:
    solved = [Solved("1 hop", "x", True, 1.0, 2), Solved("2 hops", "y", False, 1.0, 3)]
    assert by_kind(solved) == {"all": 0.5, "1 hop": 1.0, "2 hops": 0.0}


@needs_llama
@pytest.mark.parametrize("world", ["search", "apps"])
def test_near_follows_a_plan_in_the_real_runtime(world: str) -> None:
    solved = execution(Model(MODELS / "near.gguf"), "execute_plan", world, count=12, seed=1)
    assert sum(one.right for one in solved) >= 6
    assert all(0.0 < one.confidence <= 1.0 for one in solved)


@needs_llama
def test_far_plans_and_judges_in_the_real_runtime() -> None:
    far = Model(MODELS / "far.gguf")
    assert supervision(far, "plan", "apps", count=12, seed=1)["exact"] >= 0.5
    checks = supervision(far, "check_plan", "apps", count=16, seed=1)
    assert set(checks) <= {"exact", "sound work let go on", "faulty work stopped"}
    assert all(0 <= share <= 1 for share in checks.values())
