"""The ridge regression of the gain, and how it is blended into a head."""

import pytest

for extra in ("numpy", "torch"):
    pytest.importorskip(extra, reason=f"training a head needs {extra}")

import numpy
import torch
from hypothesis import given
from hypothesis import strategies as some

from nearfar.orchestrator.lab.training.parts import fit_ridge, relative_by_length, relative_outcomes, share_of
from nearfar.orchestrator.routing.head import LEAST_CHANCE, with_relative


def drawn(prompts: int = 60, agents: int = 3) -> tuple[torch.Tensor, torch.Tensor]:
    """Inputs, and outcomes of which the first input says something."""
    random = torch.Generator().manual_seed(1)
    inputs = torch.randn(prompts, 5, generator=random, dtype=torch.float64)
    chance = torch.sigmoid(inputs[:, :1] * torch.arange(agents))
    return inputs, (torch.rand(prompts, agents, generator=random) < chance).double()


def folds_for(inputs: torch.Tensor) -> torch.Tensor:
    return torch.arange(len(inputs)) % 3


def test_what_is_said_of_a_prompt_as_if_unseen_is_what_a_fit_on_the_other_folds_says() -> None:
    inputs, outcomes = drawn()
    wanted, folds = relative_outcomes(outcomes), folds_for(inputs)
    found = fit_ridge(inputs, wanted, folds)
    kept = folds != 1
    without = fit_ridge(inputs[kept], wanted[kept], folds[kept])
    assert torch.allclose(found.unseen[~kept], inputs[~kept] @ without.slopes + without.mean, atol=0.05)


def test_the_difference_of_two_agents_is_the_regression_of_their_gain() -> None:
    inputs, outcomes = drawn(agents=2)
    found = fit_ridge(inputs, relative_outcomes(outcomes), folds_for(inputs))
    gain = outcomes[:, 1] - outcomes[:, 0]
    predicted = (inputs @ found.slopes + found.mean) @ torch.tensor([-1.0, 1.0], dtype=torch.float64)
    assert float(((predicted - gain) ** 2).mean()) < float(((gain.mean() - gain) ** 2).mean())
    assert torch.allclose(found.slopes[:, 0], -found.slopes[:, 1])


def test_prompts_that_lack_an_outcome_are_left_out_and_predicted_all_the_same() -> None:
    inputs, outcomes = drawn()
    outcomes[3, 1] = torch.nan
    found = fit_ridge(inputs, relative_outcomes(outcomes), folds_for(inputs))
    assert torch.isfinite(found.unseen).all()


def test_too_few_prompts_teach_no_gain() -> None:
    inputs, outcomes = drawn(prompts=10)
    assert not fit_ridge(inputs, relative_outcomes(outcomes), folds_for(inputs)).slopes.any()


def test_a_predictor_that_is_right_has_the_whole_blend_and_one_that_is_noise_none() -> None:
    random = numpy.random.default_rng(2)
    wanted = random.normal(size=(400, 2)).astype(numpy.float32)
    noise = random.normal(size=(400, 2)).astype(numpy.float32)
    assert share_of(wanted, noise, wanted) > 0.99
    assert share_of(noise, wanted, wanted) < 0.01
    assert share_of(wanted, wanted, wanted) == pytest.approx(0.5)


def test_by_length_the_better_agents_gain_on_long_prompts() -> None:
    short, long = relative_by_length(["Hi", "Explain at length. " * 50], (0.3, 0.8))
    assert long[1] - long[0] > short[1] - short[0] > 0


@given(
    some.lists(some.tuples(some.floats(0, 1), some.floats(-1, 1)), min_size=2, max_size=6),
    some.floats(0, 1),
)
def test_blended_differences_stand_between_probabilities_that_stay_inside_0_and_1(agents: list[tuple[float, float]], share: float) -> None:
    chances, relative = ([each[place] for each in agents] for place in range(2))
    found = with_relative(chances, relative, share)
    assert all(LEAST_CHANCE <= each <= 1 - LEAST_CHANCE for each in found)
    wanted = [(1 - share) * own + share * other for own, other in agents]
    if max(wanted) - min(wanted) < 0.99:
        for place in range(1, len(agents)):
            assert found[place] - found[0] == pytest.approx(wanted[place] - wanted[0], abs=1e-6)
