"""Signals of the near model's tokens and hidden states, and how they are judged."""

from pathlib import Path

import numpy
import pytest
from llama_engine import needs_llama

from benchmarks.routing_figures.near_drafts import (
    SIGNALS,
    STATES,
    WORLDS,
    RecordedDraft,
    RecordedDrafts,
    Steps,
    TokenSignals,
    load_drafts,
    save_drafts,
    signals_of,
)
from benchmarks.routing_figures.signals import PREFILL, PROBES, auroc, figures_of
from nearfar.orchestrator.routing.looks import log_odds

WIDTH = 6
TASKS = 240


def token(log_probability: float = -0.01, margin: float = 5.0, self_certainty: float = 10.0) -> TokenSignals:
    return TokenSignals(log_probability, margin, self_certainty)


def signal(name: str, steps: Steps) -> float:
    return float(signals_of(steps)[list(SIGNALS).index(name)])


CALL = [token()] * 6


def test_confidence_is_that_of_the_least_sure_step() -> None:
    doubtful = [*CALL, token(-2.0), *CALL]
    assert signal("confidence", [CALL, doubtful, CALL]) == pytest.approx(log_odds(numpy.exp((-2.0 - 0.03) / 4)))


def test_short_step_weighs_less_if_it_counts_as_a_whole_window() -> None:
    answer = [token(-1.0)]
    assert signal("confidence", [CALL, answer]) == pytest.approx(log_odds(numpy.exp(-1.0)))
    assert signal("confidence_padded", [CALL, answer]) == pytest.approx(log_odds(numpy.exp(-0.25)))


def test_confidence_falls_after_a_tool_result_and_a_rise_is_no_fall() -> None:
    doubtful = [token(-1.0)] * 4
    sure, low = log_odds(numpy.exp(-0.01)), log_odds(numpy.exp(-1.0))
    assert signal("confidence_fall", [CALL, doubtful, CALL]) == pytest.approx(low - sure)
    assert signal("confidence_fall", [CALL]) == 0
    assert signal("confidence_fall", [doubtful, CALL]) > 0
    assert signal("confidence_first_step", [CALL, doubtful]) == pytest.approx(sure)


def test_answers_self_certainty_is_that_of_the_last_step() -> None:
    answer = [token(self_certainty=4.0), token(self_certainty=6.0)]
    assert signal("self_certainty_answer", [CALL, answer]) == 5
    assert signal("self_certainty_lowest", [CALL, answer]) == 5
    assert signal("self_certainty_mean", [CALL, answer]) == pytest.approx(70 / 8)


def test_longer_drafts_and_closer_runners_up_mean_less_certainty() -> None:
    one, two = [CALL], [CALL, [token(margin=0.1)] * 3]
    for name in ("log_probability", "margin_lowest", "margin_mean", "shortness", "few_steps"):
        assert signal(name, two) < signal(name, one), name


def test_area_counts_ties_half() -> None:
    right = numpy.array([1.0, 1.0, 0.0, 0.0])
    assert auroc(numpy.array([3.0, 4.0, 1.0, 2.0]), right) == 1
    assert auroc(numpy.ones(4), right) == 0.5
    assert auroc(numpy.array([1.0, 3.0, 2.0, 3.0]), right) == pytest.approx(1.5 / 4)


def drafts(*, seed: int, shift: float) -> RecordedDrafts:
    """Make drafts whose tokens tell nothing; right ones are shifted in one dimension of the hidden state."""
    random = numpy.random.default_rng(seed)
    right, far = random.random(TASKS) < 0.5, random.random(TASKS) < 0.9
    states = random.normal(size=(TASKS, len(STATES), WIDTH))
    states[:, :, 2] += shift * right[:, None]
    tokens = random.normal(size=(2, TASKS, len(SIGNALS)))
    return RecordedDrafts.of(
        [RecordedDraft(bool(right[at]), bool(far[at]), tokens[0, at], tokens[1, at], states[at]) for at in range(TASKS)]
    )


def test_probe_that_reads_the_same_in_both_worlds_gains() -> None:
    found = figures_of({world: drafts(seed=seed, shift=3.0) for seed, world in enumerate(WORLDS)}, resamples=50)
    assert found["hidden_state_probe"]["low"] > 0.1
    assert all(found["signals_gain"][world][PREFILL]["low"] > 0.1 for world in WORLDS)
    assert all(found["signals_chosen"][world]["signal"] in PROBES for world in WORLDS)


def test_probe_that_means_the_opposite_elsewhere_is_good_within_a_world_and_loses_on_the_other() -> None:
    found = figures_of({world: drafts(seed=0, shift=shift) for world, shift in zip(WORLDS, (3.0, -3.0), strict=True)}, resamples=50)
    assert found["hidden_state_probe"]["high"] < -0.1
    assert all(found["signals_auroc"][world][PREFILL] > 0.9 for world in WORLDS)


def test_recorded_drafts_are_read_as_they_were_written(tmp_path: Path) -> None:
    written = {world: drafts(seed=seed, shift=0.0) for seed, world in enumerate(WORLDS)}
    save_drafts(written, tmp_path / "drafts.npz")
    for world, read in load_drafts(tmp_path / "drafts.npz").items():
        assert (read.near_right == written[world].near_right).all()
        assert numpy.allclose(read.near, written[world].near, rtol=1e-3)
        assert numpy.abs(read.states - written[world].states).max() < 0.05


@needs_llama
@pytest.mark.anyio
@pytest.mark.filterwarnings("ignore:llama_token_get_attr is deprecated:DeprecationWarning")
async def test_the_shipped_models_still_write_the_recorded_drafts() -> None:
    from benchmarks.routing_figures.near_recording import SEED, TASKS, Recorder
    from nearfar.orchestrator.lab.worlds.loading import draw_tasks, open_world

    recorded, recorder = load_drafts(), Recorder()
    for name in WORLDS:
        world = open_world(name)
        again = RecordedDrafts.of([await recorder.record(world, task) for task in draw_tasks(world, TASKS, SEED)[:3]])
        assert (again.near_right == recorded[name].near_right[:3]).all()
        assert numpy.allclose(again.near, recorded[name].near[:3], rtol=0.02, atol=0.05)
        assert numpy.allclose(again.states, recorded[name].states[:3], atol=0.1)
