import pytest

from nearfar.orchestrator.lab.worlds.loading import SearchWorld, exact_match, token_f1
from nearfar.orchestrator.lab.worlds.questions import NOT_STATED, NOTHING_FOUND, Facts, PassageIndex
from nearfar.protocols import ToolCall

KINDS = {"1 hop", "2 hops", "3 hops", "4 hops", "comparison", "fan-out", "list", "unanswerable"}


def test_a_passage_is_found_by_what_it_says() -> None:
    facts = Facts(1, "test")
    index = PassageIndex(facts.passages)
    for (entity, attribute), value in list(facts.values.items())[:200]:
        found = index.search(f"{attribute} {value}").split("; ")
        assert entity in found or len(facts.having(attribute, value)) > len(found) or len(found) == 4
    index.close()


def test_a_search_falls_back_to_any_word_and_then_to_nothing() -> None:
    index = PassageIndex({"Mira Falk": {"employer": "Orbix Labs"}, "Orbix Labs": {"ceo": "Ruth Berg"}})
    assert index.search("employer Orbix") == "Mira Falk"
    assert set(index.search("Ruth Falk").split("; ")) == {"Mira Falk", "Orbix Labs"}
    assert index.search("zebra") == NOTHING_FOUND
    assert index.search('"; DROP TABLE passage; --') == NOTHING_FOUND
    assert index.search("") == NOTHING_FOUND


def test_a_section_is_opened_and_one_that_is_missing_is_not_stated() -> None:
    index = PassageIndex({"Mira Falk": {"employer": "Orbix Labs"}})
    assert index.open("Mira Falk", "employer") == "Orbix Labs"
    assert index.open("Mira Falk", "shoe size") == NOT_STATED


@pytest.mark.anyio
async def test_opening_an_unknown_title_is_an_error_that_names_it() -> None:
    world = SearchWorld()
    episode = world.reset(world.tasks(1, seed=1)[0])
    tools = {tool.spec.name: tool for tool in episode.tools}
    result = await tools["open"].run(ToolCall(id="1", name="open", arguments={"title": "Nobody Known", "section": "employer"}))
    assert (result.content, result.is_error) == ("LookupError: no passage is titled Nobody Known", True)


def test_every_kind_of_question_occurs_and_its_answer_is_not_in_it() -> None:
    world = SearchWorld()
    tasks = world.tasks(300, seed=1)
    assert {task.kind for task in tasks} == KINDS
    for task in tasks:
        answer = world.question(task).answer
        assert answer in ("yes", "no", "unknown") or answer not in task.prompt


def test_difficulty_is_the_number_of_sections_to_read() -> None:
    world = SearchWorld()
    for task in world.tasks(100, seed=2):
        if task.kind.endswith(("hop", "hops")):
            assert task.difficulty == int(task.kind[0])
        opened = [step for step in world.question(task).program.steps if step.tool == "open"]
        assert task.difficulty == len(opened)


def test_comparisons_are_balanced() -> None:
    world = SearchWorld()
    answers = [world.question(task).answer for task in world.tasks(1500, seed=3) if task.kind == "comparison"]
    assert answers.count("yes") / len(answers) == pytest.approx(0.5, abs=0.12)


@pytest.mark.parametrize(
    ("answer", "expected", "exact", "f1"),
    [
        ("Orbix Labs", "Orbix Labs", 1, 1),
        (" orbix  labs.", "Orbix Labs", 1, 1),
        ("B C, A D", "A D, B C", 1, 1),
        ("Orbix Works", "Orbix Labs", 0, 0.5),
        ("A D", "A D, B C", 0, 2 * 2 / 6),
        ("", "Orbix Labs", 0, 0),
    ],
)
def test_answers_are_graded_by_exact_match_and_token_f1(answer: str, expected: str, exact: float, f1: float) -> None:
    assert exact_match(answer, expected) == exact
    assert token_f1(answer, expected) == pytest.approx(f1)
