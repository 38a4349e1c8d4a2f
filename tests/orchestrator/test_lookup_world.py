from __future__ import annotations

import pytest

from nearfar.orchestrator.worlds.lookup import (
    DEMO_WEIGHTS,
    NOTHING_FOUND,
    SearchTask,
    SearchWorld,
    score,
    split_of,
    understands,
)


def test_the_same_seed_gives_the_same_tasks() -> None:
    assert SearchWorld(7, "test").tasks(30) == SearchWorld(7, "test").tasks(30)


def test_asking_for_more_tasks_keeps_the_earlier_facts() -> None:
    world, again = SearchWorld(7, "test"), SearchWorld(7, "test")
    world.tasks(5)
    for task, trail in again.worked_tasks(5):
        for entity, attribute, value in trail.lookups():
            assert world.lookup(entity, attribute) == value, task


def test_another_seed_gives_other_facts() -> None:
    questions = {task.question for task in SearchWorld(1, "test").tasks(50)}
    assert questions.isdisjoint(task.question for task in SearchWorld(2, "test").tasks(50))


def test_training_and_test_worlds_share_words_but_no_names() -> None:
    train = frozenset[str]().union(*(SearchWorld(seed, "train").entities for seed in range(40)))
    test = frozenset[str]().union(*(SearchWorld(seed, "test").entities for seed in range(40)))
    assert train.isdisjoint(test)
    assert {split_of(name) for name in test} == {"test"}
    assert {word for name in test for word in name.split()} <= {word for name in train for word in name.split()}


def test_following_the_lookups_leads_to_the_answer() -> None:
    world = SearchWorld(3, "test")
    for task, trail in world.worked_tasks(200):
        entity = trail.start
        for attribute in trail.attributes:
            entity = world.lookup(entity, attribute)
        assert entity == task.answer
        assert len(trail.attributes) == task.hops


def test_no_chain_repeats_an_attribute_or_a_name() -> None:
    for task, trail in SearchWorld(3, "train").worked_tasks(300):
        assert len(set(trail.attributes)) == task.hops
        assert len({trail.start, *trail.values}) == task.hops + 1


def test_the_answer_is_never_in_the_question() -> None:
    assert all(task.answer not in task.question for task in SearchWorld(5, "test").tasks(300))


def test_the_demo_mix_has_its_shares() -> None:
    tasks = [task for seed in range(20) for task in SearchWorld(seed, "test").tasks(100)]
    for hops, share in DEMO_WEIGHTS.items():
        assert sum(task.hops == hops for task in tasks) / len(tasks) == pytest.approx(share, abs=0.04)


def test_weights_choose_the_number_of_hops() -> None:
    assert {task.hops for task in SearchWorld(1, "test").tasks(20, {4: 1.0})} == {4}


def test_five_hops_are_refused() -> None:
    with pytest.raises(ValueError, match="between 1 and 4"):
        SearchWorld(1, "test").tasks(1, {5: 1.0})


@pytest.mark.parametrize(("entity", "attribute"), [("Nobody Known", "ceo"), ("", ""), ("Mira Falk", "shoe size")])
def test_an_unknown_name_or_attribute_finds_nothing(entity: str, attribute: str) -> None:
    assert SearchWorld(1, "test").lookup(entity, attribute) == f"{NOTHING_FOUND} {attribute} of {entity}"


@pytest.mark.parametrize("answer", ["Mira Falk", " mira  falk ", "MIRA FALK."])
def test_case_spacing_and_a_full_stop_do_not_matter_to_the_score(answer: str) -> None:
    assert score(answer, SearchTask("1", "?", "Mira Falk", 1)) == 1


@pytest.mark.parametrize("answer", ["", "Mira", "Mira Falk and Jonas Berg", "nothing found"])
def test_anything_else_scores_zero(answer: str) -> None:
    assert score(answer, SearchTask("1", "?", "Mira Falk", 1)) == 0


def test_every_question_of_the_world_is_understood() -> None:
    for split in ("train", "test"):
        assert all(understands(task.question) for task in SearchWorld(9, split).tasks(300))


@pytest.mark.parametrize(
    "question",
    [
        "",
        "What is the capital of France?",
        "Write a poem about the sea.",
        "What is the shoe size of Mira Falk?",
        "What is Mira Falk?",
        "What is the ceo of the rival of the bank of the city of the employer of Mira Falk?",
    ],
)
def test_questions_outside_the_world_are_not_understood(question: str) -> None:
    assert not understands(question)
