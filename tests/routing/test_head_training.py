"""Training the learned head, and what its held-out report says."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from math import nan
from pathlib import Path

import pytest

numpy = pytest.importorskip("numpy")
for extra in ("onnxruntime", "tokenizers", "torch", "onnx"):
    pytest.importorskip(extra, reason=f"training a head needs {extra}")

from head_examples import AGENTS, BOOK, BOOKS, SUM, SUMS, asked, examples
from hypothesis import given
from hypothesis import strategies as some

from nearfar.orchestrator.lab.training import train_head, write_head
from nearfar.orchestrator.lab.training.parts import Features, fit_likeness, words_logits
from nearfar.orchestrator.lab.training.report import calibration, load_head, train_on_traces
from nearfar.orchestrator.routing.head import CARD, LIKENESS, WORDS, Head
from nearfar.orchestrator.routing.traces import AgentOutcome, Trace
from nearfar.orchestrator.routing.training import Examples, examples_of, folds_of
from nearfar.orchestrator.util.embedding import MiniLmEmbedder
from nearfar.protocols import ConfigError


@pytest.fixture(scope="module")
def embedder() -> MiniLmEmbedder:
    return MiniLmEmbedder()


def traces(known: Examples) -> list[Trace]:
    return [
        Trace(
            prompt=prompt,
            task_class=name,
            outcomes={
                agent: AgentOutcome(score=None if numpy.isnan(score) else float(score))
                for agent, score in zip(known.agents, scores, strict=True)
            },
        )
        for prompt, name, scores in zip(known.prompts, known.classes, known.outcomes, strict=True)
    ]


def gains(head: Head, prompts: Sequence[str], task_class: str = "") -> list[float]:
    found = [head.predict(prompt, task_class).probabilities for prompt in prompts]
    return [probabilities["far"] - probabilities["near"] for probabilities in found]


def test_too_few_prompts_are_refused() -> None:
    with pytest.raises(ConfigError, match="19 prompts are too few"):
        train_head(examples(19, embedder=None))


def test_an_agent_without_any_outcome_is_refused() -> None:
    known = examples(40, embedder=None)
    known.outcomes[:, 0] = nan
    with pytest.raises(ConfigError, match="no trace says how 'near' did"):
        train_head(known)


def test_an_agent_that_always_succeeds_is_refused() -> None:
    known = examples(40, embedder=None)
    known.outcomes[5:, 1] = 1
    known.outcomes[:5, 1] = nan
    with pytest.raises(ConfigError, match="the 35 known outcomes of 'far' are all the same"):
        train_head(known)


def test_an_agent_that_no_trace_tells_of_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"no trace tells of third \(the traces tell of far, near\)"):
        examples_of(traces(examples(40, embedder=None)), ("near", "third"))


def test_it_learns_where_half_of_the_outcomes_are_missing(embedder: MiniLmEmbedder) -> None:
    known = examples(160, embedder=embedder, classes=False)
    known.outcomes[::4, 0] = known.outcomes[1::4, 0] = nan
    known.outcomes[2::4, 1] = known.outcomes[3::4, 1] = nan
    with load_head(train_head(known), embedder) as head:
        assert min(gains(head, asked(BOOK))) > max(gains(head, asked(SUM))) + 0.2


def test_any_number_of_agents_is_learned(embedder: MiniLmEmbedder) -> None:
    known = examples(120, embedder=embedder)
    five = replace(known, agents=("a", "b", "c", "d", "e"), outcomes=known.outcomes[:, [0, 1, 1, 0, 0]].copy())
    with load_head(train_head(five), embedder) as head:
        found = head.predict(asked(BOOK)[0]).probabilities
    assert list(found) == ["a", "b", "c", "d", "e"]
    assert found["a"] == pytest.approx(found["d"], abs=1e-3)
    assert found["c"] > found["a"] + 0.3


def test_a_single_agent_is_learned() -> None:
    known = examples(60, embedder=None)
    with load_head(train_head(replace(known, agents=("near",), outcomes=known.outcomes[:, :1])), None) as head:
        easy, hard = (head.predict(asked(kind)[0]).probabilities["near"] for kind in (SUM, BOOK))
    assert easy > hard + 0.3


def test_the_same_seed_writes_the_same_head(embedder: MiniLmEmbedder, tmp_path: Path) -> None:
    for name in ("one", "other"):
        write_head(train_head(examples(60, embedder=embedder), seed=3), tmp_path / name)
    for name in (CARD, WORDS, LIKENESS):
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "other" / name).read_bytes()


def test_a_head_that_the_disk_has_no_room_for_leaves_the_old_one(
    tmp_path: Path, no_room: Callable[[int], AbstractContextManager[None]]
) -> None:
    write_head(train_head(examples(60, embedder=None)), tmp_path)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    other = train_head(examples(40, embedder=None, classes=False))
    with no_room(20_000), pytest.raises(ConfigError, match="cannot be written"):
        write_head(other, tmp_path)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_files_of_two_heads_are_not_taken_for_one(tmp_path: Path) -> None:
    for name, count in (("one", 60), ("other", 40)):
        write_head(train_head(examples(count, embedder=None)), tmp_path / name)
    (tmp_path / "other" / WORDS).replace(tmp_path / "one" / WORDS)
    with pytest.raises(ConfigError, match="different heads"):
        Head(tmp_path / "one")


def test_classes_in_training_do_not_change_what_is_said_without_one(embedder: MiniLmEmbedder) -> None:
    known = examples(60, embedder=embedder)
    prompts = [*asked(SUM), *asked(BOOK)]
    with load_head(train_head(known), embedder) as head, load_head(train_head(replace(known, classes=())), embedder) as other:
        assert gains(head, prompts) == pytest.approx(gains(other, prompts), abs=1e-6)


def test_a_class_tells_what_the_prompt_does_not() -> None:
    known = examples(160, embedder=None)
    blank = replace(known, prompts=[f"Do task {place}" for place in range(160)])
    with load_head(train_head(blank), None) as head:
        assert gains(head, ["Do task 999"], BOOKS)[0] > gains(head, ["Do task 999"], SUMS)[0] + 0.4


def test_what_is_written_says_what_was_trained() -> None:
    known = examples(60, embedder=None, classes=False)
    parts = train_head(known)
    prompts = [*asked(SUM), *asked(BOOK), "", "another thing"]
    with load_head(parts, None) as head:
        raw = [head.look(prompt).raw for prompt in prompts]
    assert numpy.allclose(raw, words_logits(parts.words, Features.of(prompts)), atol=1e-4)


def test_corrections_are_those_of_a_fit_without_the_prompt() -> None:
    random = numpy.random.default_rng(0)
    embeddings = random.normal(size=(40, 8)).astype(numpy.float32)
    outcomes = (embeddings[:, :1] + 0.5 * random.normal(size=(40, 1)) > 0).astype(numpy.float32)
    surface, offset = random.normal(size=(40, 2)).astype(numpy.float32), numpy.zeros((40, 1), dtype=numpy.float32)
    folds = numpy.arange(len(embeddings)) % 3
    unseen = fit_likeness(embeddings, surface, outcomes, offset, folds, seed=0).unseen
    for place in range(0, 40, 8):
        left_out = outcomes.copy()
        left_out[place] = nan
        found = fit_likeness(embeddings, surface, left_out, offset, folds, seed=0).unseen
        assert unseen[place, 0] == pytest.approx(found[place, 0], abs=0.02)


def test_traces_of_the_same_prompt_become_one_example() -> None:
    same = [Trace(prompt="Do it.", task_class=f"c{score}", outcomes={"a": AgentOutcome(score=score)}) for score in (0.0, 1.0, 1.0)]
    unknown = Trace(prompt="Do it.", outcomes={"a": AgentOutcome(), "b": AgentOutcome()})
    found = examples_of([*same, unknown], ("a", "b"))
    assert found.prompts == ["Do it."]
    assert found.outcomes[0, 0] == pytest.approx(2 / 3)
    assert numpy.isnan(found.outcomes[0, 1])
    assert found.classes == ["c0.0"]


@given(some.lists(some.sampled_from("abcdefgh"), min_size=1), some.integers(1, 6), some.integers(0, 9))
def test_the_same_prompt_is_always_in_the_same_fold(prompts: list[str], folds: int, seed: int) -> None:
    found = folds_of(prompts, folds, seed)
    assert all(0 <= fold < folds for fold in found)
    assert len(set(zip(prompts, found.tolist(), strict=True))) == len(set(prompts))


def test_perfect_probabilities_have_no_error() -> None:
    outcomes = numpy.array([0.0, 1.0, 1.0])
    found = calibration(outcomes, outcomes)
    assert (found.brier, found.log_loss, found.calibration_error) == pytest.approx((0, 0, 0), abs=1e-5)


def test_the_calibration_error_is_the_distance_in_each_bin() -> None:
    found = calibration(numpy.array([0.91, 0.91, 0.12, 0.12]), numpy.array([1.0, 0.0, 0.0, 0.0]))
    assert found.calibration_error == pytest.approx((0.41 + 0.12) / 2)
    assert found.brier == pytest.approx((0.09**2 + 0.91**2 + 2 * 0.12**2) / 4)


def test_the_report_tells_what_the_head_is_worth(embedder: MiniLmEmbedder) -> None:
    known = examples(150, embedder=None)
    known.outcomes[:15, 0] = nan
    steps: list[str] = []
    trained = train_on_traces(traces(known), AGENTS, embedder=embedder, progress=steps.append)
    report = trained.report
    near, far = report.agents
    assert (report.prompts, near.prompts, far.prompts) == (150, 135, 150)
    assert (near.missing, far.missing) == pytest.approx((0.1, 0))
    assert near.after.brier < 0.2 < near.quality < 0.6
    assert [(pair.near, pair.far, pair.prompts) for pair in report.pairs] == [("near", "far", 135)]
    pair = report.pairs[0]
    assert pair.recovered.low <= pair.recovered.value <= pair.recovered.high
    assert pair.recovered.value > 0.65
    assert pair.far_share_for_half.value < 0.4 < 0.6 > pair.far_share_for_most.value
    assert (steps[0], steps[-1]) == ("embedding 150 prompts", "training on all prompts")
    assert trained.parts.agents == AGENTS


def test_a_report_is_made_where_an_agent_hardly_ever_fails() -> None:
    known = examples(60, embedder=None)
    known.outcomes[:, 1] = 1
    known.outcomes[0, 1] = 0
    report = train_on_traces(traces(known), AGENTS, embedder=None).report
    assert report.agents[1].after.brier < 0.1


def test_traces_without_any_outcome_of_an_agent_are_refused_before_anything_takes_long(embedder: MiniLmEmbedder) -> None:
    known = examples(60, embedder=None)
    known.outcomes[:, 1] = nan
    steps: list[str] = []
    with pytest.raises(ConfigError, match="no trace says how 'far' did"):
        train_on_traces(traces(known), AGENTS, embedder=embedder, progress=steps.append)
    assert not steps
