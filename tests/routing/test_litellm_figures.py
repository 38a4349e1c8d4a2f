"""The comparison with LiteLLM: what it says where LiteLLM is not there, and how scores become figures."""

from pathlib import Path

import pytest

pytest.importorskip("numpy")

from benchmarks.routing_figures import litellm
from nearfar.orchestrator.routing.traces import AgentOutcome, Trace

DATA = Path(__file__).parents[3] / "shared" / "data" / "routing"


def trace(near: float, far: float) -> Trace:
    return Trace(prompt="?", outcomes={"near": AgentOutcome(score=near), "far": AgentOutcome(score=far)})


def test_a_quick_run_without_litellm_says_that_it_was_not_measured(tmp_path: Path) -> None:
    if not DATA.is_dir():
        pytest.skip(f"{DATA} is missing")
    found = litellm.figures(DATA, quick=True, cache=tmp_path)
    assert found == {"litellm_apgr": f"not measured: LiteLLM {litellm.RELEASE} is not installed, which a full run does"}
    assert not list(tmp_path.iterdir())


def test_scores_that_find_every_gain_recover_more_than_their_reverse() -> None:
    traces = [trace(0.0, 1.0) if place % 2 else trace(1.0, 1.0) for place in range(40)]
    gains = [float(place % 2) for place in range(40)]
    best = litellm.apgrs(traces, gains)["near -> far"]
    worst = litellm.apgrs(traces, [-gain for gain in gains])["near -> far"]
    assert best == pytest.approx(0.75)
    assert worst == pytest.approx(0.25)


def test_agents_that_do_equally_well_are_no_pair() -> None:
    assert litellm.apgrs([trace(0.0, 1.0), trace(1.0, 0.0)], [0.0, 1.0]) == {}
