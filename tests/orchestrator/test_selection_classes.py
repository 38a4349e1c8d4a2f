"""What `auto` sees in a task, and which recorded tasks it takes it for."""

from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st
from measured_runs import APPS_TOOLS, SEARCH_TOOLS, WORLDS

from nearfar.orchestrator.routing.costs import lineage
from nearfar.orchestrator.routing.task_classes import UNKNOWN, TaskClasses
from nearfar.orchestrator.task import last_words
from nearfar.orchestrator.task.modes import NAME, NUMBER, Shape, TaskProfile, changes_something
from nearfar.protocols import Message


def labelled(count: int, seed: int) -> Iterator[tuple[str, TaskProfile]]:
    for world, tools in WORLDS:
        yield from ((f"{world.name}/{task.kind}", TaskProfile.of(task.prompt, tools)) for task in world.tasks(count, seed))


def classes_of(count: int, seed: int) -> TaskClasses:
    classes = TaskClasses()
    for name, profile in labelled(count, seed):
        classes.add(name, profile)
    return classes


def test_prompts_that_were_never_seen_are_known_by_their_kind() -> None:
    classes = classes_of(150, seed=1)
    guesses = [(name, classes.guess(profile, minimum_familiarity=0.5).name) for name, profile in labelled(100, seed=2)]
    worlds = sum(lineage(name)[0] == lineage(guess)[0] for name, guess in guesses if guess) / len(guesses)
    kinds = sum(name == guess for name, guess in guesses) / len(guesses)
    assert worlds == 1.0
    assert kinds >= 0.55  # of 15; most of the others are a neighbour, such as 3 errands for 4


def test_words_alone_tell_the_worlds_apart() -> None:
    classes = TaskClasses()
    for name, profile in labelled(60, seed=1):
        classes.add(name, TaskProfile.of(profile.prompt))
    guesses = [
        (name, classes.guess(TaskProfile.of(profile.prompt), minimum_familiarity=0.5).name) for name, profile in labelled(60, seed=2)
    ]
    assert sum(name.split("/")[0] == guess.split("/")[0] for name, guess in guesses) / len(guesses) >= 0.95


@pytest.mark.parametrize(
    "profile",
    [
        TaskProfile.of("Translate this sentence into French: the cat sat on the mat.", SEARCH_TOOLS),
        TaskProfile.of("Summarise unread newsletters weekly", APPS_TOOLS),
        TaskProfile.of("What is the mayor of Port Selby?"),
        TaskProfile.of("", SEARCH_TOOLS),
        TaskProfile.of("\u30dd\u30fc\u30c8\u30fb\u30bb\u30eb\u30d3\u30fc\u306e\u5e02\u9577\u306f\uff1f", SEARCH_TOOLS),
    ],
    ids=["other words", "other errand", "other tools", "nothing", "other script"],
)
def test_a_task_unlike_all_recorded_ones_is_taken_for_none(profile: TaskProfile) -> None:
    assert classes_of(60, seed=1).guess(profile, minimum_familiarity=0.5) == UNKNOWN


def test_a_class_is_named_only_as_far_as_it_is_sure() -> None:
    classes = TaskClasses()
    for kind in ("red", "green", "blue"):
        for word in ("one", "two", "three"):
            classes.add(f"shop/{kind}", TaskProfile.of(f"sell item {word}"))
    guess = classes.guess(TaskProfile.of("sell item one"), minimum_familiarity=0.5)
    assert (guess.name, round(guess.probability, 6)) == ("shop", 1.0)
    assert guess.shares == pytest.approx({"shop/red": 1 / 3, "shop/green": 1 / 3, "shop/blue": 1 / 3})


def test_runs_of_one_task_under_many_configurations_are_one_example() -> None:
    once, often = TaskClasses(), TaskClasses()
    for name, profile in labelled(20, seed=1):
        once.add(name, profile)
        for _ in range(5 if "1" in name else 1):
            often.add(name, profile)
    for _, profile in labelled(20, seed=3):
        assert once.guess(profile, minimum_familiarity=0.0) == often.guess(profile, minimum_familiarity=0.0)


@pytest.mark.parametrize(
    ("tool", "changes"),
    [
        ("search", False),
        ("open", False),
        ("find_contact", False),
        ("check_order", False),
        ("readMail", False),
        ("double", False),
        ("pay", True),
        ("send_mail", True),
        ("createInvoice", True),
        ("calendar_event_delete", True),
        ("run_sql", True),
    ],
)
def test_a_tools_first_verb_says_whether_it_changes_something(tool: str, changes: bool) -> None:
    assert changes_something(tool) is changes


@pytest.mark.parametrize(
    ("prompt", "tools", "shape"),
    [
        ("Pay Mira.", ["find_contact", "pay"], Shape.STATEFUL_TOOLS),
        ("Who is Mira?", ["find_contact"], Shape.READING_TOOLS),
        ("Who is Mira?", [], Shape.PROMPT),
        ("word " * 1501, [], Shape.PROMPT),
    ],
)
def test_shape_follows_the_tools(prompt: str, tools: list[str], shape: Shape) -> None:
    assert TaskProfile.of(prompt, tools).shape is shape


@pytest.mark.parametrize(
    ("words", "tools", "shape"),
    [(1501, [], Shape.LONG_CONTEXT), (1500, [], Shape.PROMPT), (1501, ["search"], Shape.READING_TOOLS)],
)
def test_without_tools_a_long_context_is_a_shape_of_its_own(words: int, tools: list[str], shape: Shape) -> None:
    assert TaskProfile.of("Sum it up.", tools, context_words=words).shape is shape


def test_names_and_numbers_are_what_they_are_not_which() -> None:
    first, second = (TaskProfile.of(text).words for text in ("Who is Mira Falk's 2 rivals?", "Who is Otto Berg-Lind's 1,250 rivals?"))
    assert first == second == ("who", "is", NAME, "'s", NUMBER, "rivals")


def test_relations_and_parts_of_a_prompt_are_counted() -> None:
    profile = TaskProfile.of("List Mira Falk\u2019s city, the ceo of the firm whose product is Tea and its rival.")
    assert (profile.relations, profile.parts) == (3, 2)


@given(st.text(max_size=200), st.lists(st.text(max_size=20), max_size=4))
def test_any_prompt_and_tools_have_a_profile(prompt: str, tools: list[str]) -> None:
    profile = TaskProfile.of(prompt, tools)
    assert TaskProfile.model_validate_json(profile.model_dump_json()) == profile
    assert all(profile.words)


def test_the_users_last_message_is_what_is_asked() -> None:
    talk = [Message.system("Be brief."), Message.user("Hello."), Message.assistant("Hi."), Message.user("Who is Mira?")]
    assert last_words(talk) == "Who is Mira?"
    assert last_words(talk[:1]) == ""
