"""When open-ended texts mean the same."""

import pytest

from nearfar.orchestrator.routing.answers import Answer
from nearfar.orchestrator.routing.looks import crowd, second_opinion
from nearfar.orchestrator.routing.meaning import (
    cluster_share,
    clusters,
    contradict,
    graded,
    mean_same,
    opinion_on,
    semantic_agreement,
    shipped_embedder,
)

FOOD = "You should take the medicine together with food, since an empty stomach gets upset easily."
PLANTS = "Photosynthesis turns light into chemical energy in the chloroplasts of green plants."
ALSO_PLANTS = "In green plants, chloroplasts turn light into chemical energy, which is called photosynthesis."


def words_alone() -> None:
    """No embedder."""


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (FOOD, FOOD.replace("should take", "should not take")),
        (FOOD, FOOD.replace("should take", "shouldn't take")),
        ("The treaty was signed in 1848 after long talks.", "The treaty was signed in 1849 after long talks."),
        ("The treaty was signed in Paris after long talks.", "The treaty was signed in Vienna after long talks."),
        ("The price has increased since last week.", "The price has decreased since last week."),
        ("The drug is safe for children and for adults.", "The drug is unsafe for children and for adults."),
        ("It was -5 degrees in the early morning.", "It was 5 degrees in the early morning."),
        ("Add two spoons of sugar to the milk.", "Add three spoons of sugar to the milk."),
        ("The witness saw the red car run the light.", "The witness saw the blue car run the light."),
        ("The meeting was moved from Monday to Friday.", "The meeting was moved from Friday to Monday."),
        ("The company bought its smaller rival last spring.", "The smaller rival bought its company last spring."),
        ("Всё это действительно очень большой дом.", "Всё это не действительно очень большой дом."),
        ("Sort them:\n```\nfirst + second\n```", "Sort them:\n```\nfirst - second\n```"),
        ("Use `rm -r build` to clean the folder.", "Use `rm -rf build` to clean the folder."),
        ("| Rome | 3 |\n| Oslo | 4 |", "| Rome | 4 |\n| Oslo | 3 |"),
        ("SELECT name WHERE age > 30", "SELECT name WHERE age < 30"),
    ],
)
def test_texts_that_contradict_each_other_never_agree(first: str, second: str) -> None:
    assert contradict(first, second)
    assert contradict(second, first)
    assert semantic_agreement(first, second) == 0
    assert not mean_same(Answer.of_text(first), Answer.of_text(second), words_alone)


def test_a_text_that_tells_more_contradicts_nothing() -> None:
    assert not contradict("The treaty was signed in Paris.", "The treaty was signed in Paris by both sides in 1848.")


def test_the_same_in_other_words_agrees_and_another_subject_does_not() -> None:
    assert mean_same(Answer.of_text(PLANTS), Answer.of_text(ALSO_PLANTS), words_alone)
    assert not mean_same(Answer.of_text(PLANTS), Answer.of_text(FOOD), words_alone)


def test_the_shipped_embedder_compares_by_meaning_too() -> None:
    pytest.importorskip("onnxruntime")
    pytest.importorskip("tokenizers")
    assert mean_same(Answer.of_text(PLANTS), Answer.of_text(ALSO_PLANTS), shipped_embedder)
    assert not mean_same(Answer.of_text(PLANTS), Answer.of_text(FOOD), shipped_embedder)


def test_short_answers_are_not_graded_by_meaning() -> None:
    assert graded(Answer.of_text("Paris"), Answer.of_text("Rome"), words_alone) is None
    assert "semantic agreement" not in second_opinion(Answer.of_text("Paris"), Answer.of_text("Paris")).measures


def test_samples_are_clustered_and_the_share_of_the_drafts_cluster_is_told() -> None:
    answers = [Answer.of_text(text) for text in (PLANTS, FOOD, ALSO_PLANTS, "")]
    assert clusters(answers, words_alone) == [[0, 2], [1], [3]]
    assert cluster_share(answers[0], answers[1:3], words_alone) == pytest.approx(2 / 3)


def test_opinions_are_counted_by_what_they_mean() -> None:
    found = crowd(Answer.of_text("12 km"), [Answer.of_text(text) for text in ("12000 m", "13 km", "13,000 m", "")])
    assert found == {"opinions that agree": 1, "largest group of others": 2, "different answers": 1}


def test_an_opinion_on_an_open_ended_draft_is_compared_as_a_whole_whatever_line_it_ends_with() -> None:
    draft = Answer.of_text(PLANTS)
    opinion = opinion_on(draft, f"{ALSO_PLANTS}\n\nAnswer: chloroplasts")
    assert mean_same(draft, opinion, words_alone)
    assert opinion_on(Answer.of_text("42"), "Let me think about 7 of them.\n\nAnswer: 42").agrees(Answer.of_text("42"))
