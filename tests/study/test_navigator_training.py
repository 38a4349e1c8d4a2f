"""Training of a navigator on recorded runs of a task in which a plan pays only where much of the prompt is left."""

import random
from collections.abc import Callable

import pytest
from navigators import evidence
from study_records import record

from nearfar import ConfigError
from nearfar.orchestrator.lab.training.navigation import train_navigator
from nearfar.orchestrator.routing.navigator import MOST_WEIGHTS, Navigator, navigated
from nearfar.orchestrator.routing.outcome_records import RunRecord
from nearfar.orchestrator.task.events import Move, Navigated

_STEPS = 3


def _run(number: int, choose: Callable[[list[float]], Navigated]) -> RunRecord:
    """A run of three steps, easy or hard: a hard one is right only after a plan, and a check is of no use."""
    chance = random.Random(f"run {number}")
    is_hard, is_planned, calls = chance.random() < 0.5, False, 0
    moves: list[Navigated] = []
    for step in range(_STEPS):
        seen = evidence(
            words_of_the_prompt_that_are_not=chance.gauss(2.0 if is_hard else 1.0, 0.2),
            last_confidence=chance.random() * 3,
            turns=float(step),
            far_calls=[0.0, 0.6931, 1.0986, 1.3863][calls],
            has_a_plan=float(is_planned),
        )
        moves.append(choose(seen))
        calls += moves[-1].move is not Move.STEP
        is_planned = is_planned or moves[-1].move is Move.PLAN
    score = float(chance.random() < (0.95 if is_planned or not is_hard else 0.1))
    return record("pevr/inf", number, score=score, far_calls=calls, moves=tuple(moves))


def _by_chance(seen: list[float]) -> Navigated:
    return navigated(None, seen, explore=1)


def test_a_trained_navigator_asks_for_a_plan_where_it_pays_and_nowhere_else() -> None:
    random.seed(3)
    card = train_navigator([_run(number, _by_chance) for number in range(1500)], call_price=0.2, steps=1500)
    assert sum(len(row) for layer in card.layers for row in layer) < MOST_WEIGHTS
    navigator = Navigator(card)
    fresh = [_run(-number, lambda seen: navigated(navigator, seen, explore=0)) for number in range(1, 301)]
    hard = [each for each in fresh if max(each.moves[0].seen[3], each.moves[-1].seen[3]) > 1.5]
    easy = [each for each in fresh if each not in hard]
    assert sum(each.far_calls for each in easy) <= 0.05 * len(easy)
    assert 0.95 * len(hard) <= sum(each.far_calls for each in hard) <= 1.1 * len(hard)
    assert sum(each.score for each in fresh) / len(fresh) > 0.9


def test_a_far_call_that_has_to_bring_too_much_is_never_made() -> None:
    random.seed(3)
    navigator = Navigator(train_navigator([_run(number, _by_chance) for number in range(1500)], call_price=1.0, steps=1500))
    fresh = [_run(-number, lambda seen: navigated(navigator, seen, explore=0)) for number in range(1, 101)]
    assert sum(each.far_calls for each in fresh) <= 3


def test_the_same_runs_and_seed_train_the_same_navigator() -> None:
    random.seed(3)
    runs = [_run(number, _by_chance) for number in range(120)]
    assert train_navigator(runs, steps=50) == train_navigator(runs, steps=50)


def test_a_few_runs_train_no_navigator() -> None:
    with pytest.raises(ConfigError, match="2 runs with moves are too few"):
        train_navigator([*(_run(number, _by_chance) for number in range(2)), *(record(task=number) for number in range(200))])
