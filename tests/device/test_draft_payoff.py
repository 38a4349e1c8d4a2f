"""When drafting pays, and how little it costs where it does not."""

from collections.abc import Callable

import pytest

from nearfar.device.worker.draft_payoff import Draft, GuessOrigin, GuessSource, Payoff

PASSES = 2000
GUESS = GuessOrigin(GuessSource.PROMPT, "", 4)


def _seconds(tokens: int) -> float:
    return 0.004 + 0.003 * tokens


def _speedup(steps: int, right: Callable[[int], bool], *, overhead: float = 0.0) -> float:
    """Decode so many passes, where each step guesses 16 tokens; return plain / drafted seconds for the same tokens."""
    payoff, spent, tokens = Payoff(), 0.0, 0
    for number in range(PASSES):
        plan = payoff.plan(size=steps, steps=steps)
        if plan is None:
            spent, tokens = spent + _seconds(steps), tokens + steps
            continue
        walked = 0.0
        for _ in range(steps if plan.trial.drafts else 0):
            draft = payoff.cut(Draft([1] * 16, [GUESS] * 16), plan)
            plan.drafted, walked = True, walked + overhead
            plan.size += len(draft.tokens)
            for _ in draft.tokens or [0]:
                payoff.records.add(GUESS, right=right(number))
                if not right(number):
                    break
                plan.gained += bool(draft.tokens)
        seconds = _seconds(plan.size)
        plan.end(model_seconds=seconds, seconds=seconds + walked)
        spent, tokens = spent + seconds + walked, tokens + plan.gained
    return tokens / steps * _seconds(steps) / spent


@pytest.mark.parametrize("steps", [1, 2, 4, 8])
def test_guesses_that_are_always_wrong_cost_next_to_nothing(steps: int) -> None:
    assert _speedup(steps, lambda _: False, overhead=0.0002) >= 0.99


@pytest.mark.parametrize("steps", [1, 2, 4])
def test_guesses_that_are_always_right_are_used(steps: int) -> None:
    assert _speedup(steps, lambda _: True, overhead=0.0002) >= 1.1


@pytest.mark.parametrize("steps", [1, 4, 8])
def test_what_was_won_is_not_lost_again_once_guesses_go_wrong(steps: int) -> None:
    assert _speedup(steps, lambda number: number < PASSES // 2) >= 1.0


@pytest.mark.parametrize("steps", [1, 2])
def test_drafting_finds_out_that_guesses_have_become_right(steps: int) -> None:
    late = _speedup(steps, lambda number: number > PASSES // 4)
    assert late >= 1.1
