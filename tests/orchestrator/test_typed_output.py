"""`output`: an object of a pydantic model or a JSON value, an answer that does not fit, and runs whose result is read back."""

import json
from datetime import date
from pathlib import Path

import pytest
from linked import LINKS, linked
from pydantic import BaseModel, Field, RootModel, field_validator

from nearfar import Hybrid, InvalidOutput, InvalidRequest, Message, Policy, ScriptedAgent, TaskFinished
from nearfar.protocols import Side

pytestmark = pytest.mark.anyio

FITS = '{"name": "Mira Falk", "born": "1961-04-02"}'
NO_DATE = '{"name": "Mira Falk", "born": "2 April"}'
NOT_JSON = "She was born in 1961."


class Person(BaseModel):
    """A person."""

    name: str = Field(min_length=1)
    born: date

    @field_validator("born")
    @classmethod
    def _was_born(cls, value: date) -> date:
        if value.year > 2000:
            raise ValueError("it lies too late")
        return value


MIRA = Person(name="Mira Falk", born=date(1961, 4, 2))


def public(strategy: str) -> Policy:
    return Policy.model_validate({"strategy": strategy, "sensitivity": "public"})


@pytest.mark.parametrize("link", LINKS)
@pytest.mark.parametrize("strategy", ["device", "cloud"])
async def test_the_output_is_an_object_of_the_model(strategy: str, link: str) -> None:
    near, far = ScriptedAgent([FITS], name="near"), ScriptedAgent([FITS], name="far", side=Side.FAR)
    async with linked(near, far, public(strategy), link=link) as hybrid:
        result = await hybrid.run("Who?", output=Person)
    assert result.output == MIRA
    assert type(result.output) is Person
    assert json.loads(result.model_dump_json())["output"] == json.loads(FITS)


async def test_the_last_event_of_a_stream_has_the_object_too() -> None:
    async with Hybrid(near=ScriptedAgent([FITS])) as hybrid:
        *_, last = [event async for event in hybrid.stream("Who?", output=Person)]
    assert isinstance(last, TaskFinished)
    assert last.result.output == MIRA


async def test_a_model_of_another_root_and_one_with_aliases_are_taken() -> None:
    class Towns(RootModel[list[str]]):
        pass

    class Fare(BaseModel):
        cents: int = Field(alias="fare-in-cents")

    async with Hybrid(near=ScriptedAgent(['["Lima", "Cusco"]', '{"fare-in-cents": 250}'])) as hybrid:
        towns = await hybrid.run("Which towns?", output=Towns)
        fare = await hybrid.run("Which fare?", output=Fare)
    assert (towns.output.root, fare.output.cents) == (["Lima", "Cusco"], 250)
    assert json.loads(fare.model_dump_json())["output"] == {"fare-in-cents": 250}


@pytest.mark.parametrize(
    ("wrong", "problem"),
    [
        (NOT_JSON, "the output is not JSON"),
        ('{"name": "Mira Falk"}', "'born' is a required property"),
        (NO_DATE, "at $.born: Input should be a valid date"),
        ('{"name": "Mira Falk", "born": "2024-01-01"}', "at $.born: it lies too late"),
    ],
)
async def test_an_answer_that_does_not_fit_is_shown_to_its_agent_once_with_the_problem(wrong: str, problem: str) -> None:
    near = ScriptedAgent([wrong, FITS])
    async with Hybrid(near=near) as hybrid:
        result = await hybrid.run("Who?", output=Person)
    said, objection = near.requests[1].messages[-2:]
    assert said == Message.assistant(wrong)
    assert objection.text.startswith("Your last reply could not be used")
    assert problem in objection.text
    assert result.output == MIRA
    assert [(attempt.outcome, attempt.steps) for attempt in result.attempts] == [("accepted", 2)]
    assert result.near.steps == len(result.calls) == 2


async def test_a_second_answer_that_does_not_fit_is_an_error_with_its_text() -> None:
    async with Hybrid(near=ScriptedAgent([NOT_JSON, NO_DATE])) as hybrid:
        with pytest.raises(InvalidOutput, match="does not fit Person: at \\$.born") as failed:
            await hybrid.run("Who?", output=Person)
    assert failed.value.text == NO_DATE


async def test_another_agent_takes_over_from_one_whose_answers_do_not_fit() -> None:
    far = ScriptedAgent([FITS], name="far", side=Side.FAR)
    async with Hybrid(near=ScriptedAgent([NO_DATE, NO_DATE]), far=far, policy=public("cascade")) as hybrid:
        result = await hybrid.run("Who?", output=Person)
    assert (result.output, result.was_fallback, [attempt.outcome for attempt in result.attempts]) == (MIRA, True, ["failed", "accepted"])


async def test_an_answer_of_minions_has_to_fit_the_model() -> None:
    def answer(text: str) -> str:
        return json.dumps({"answer": text, "scratchpad": "", "jobs": []})

    jobs = {"jobs": [{"instruction": "When was she born?", "advice": ""}]}
    found = {"explanation": "It says so.", "citation": "a note on her", "answer": "1961"}
    far = ScriptedAgent([json.dumps(jobs), answer(NO_DATE), answer(FITS)], name="far", side=Side.FAR)
    async with Hybrid(near=ScriptedAgent([json.dumps(found)]), far=far, policy=public("minions")) as hybrid:
        result = await hybrid.run("Who?", context="This is a note on her.", output=Person)
    assert result.output == MIRA
    assert "valid date" in far.requests[-1].messages[-1].text


async def test_the_answer_made_of_subtasks_has_to_fit_the_model_and_their_own_do_not() -> None:
    plan = {"subtasks": [{"id": "a", "task": "Who?", "needs": []}, {"id": "b", "task": "When?", "needs": []}]}
    far = ScriptedAgent([json.dumps(plan), NO_DATE, FITS], name="far", side=Side.FAR)
    near = ScriptedAgent(["Mira Falk", "1961"], confidence=0.9)
    async with Hybrid(near=near, far=far, policy=public("subtasks")) as hybrid:
        assert (await hybrid.run("Who and when?", output=Person)).output == MIRA


async def test_a_recorded_result_is_an_object_again_where_the_model_is_given(tmp_path: Path) -> None:
    async with Hybrid(near=ScriptedAgent([FITS]), records=tmp_path) as hybrid:
        await hybrid.run("Who?", output=Person, idempotency_key="one")
        again = await hybrid.run("Who?", output=Person, idempotency_key="one")
    async with Hybrid(near=ScriptedAgent([]), records=tmp_path) as later:
        resumed = await later.resume("one", output=Person)
        plain = await later.resume("one")
    assert (again.output, resumed.output, plain.output) == (MIRA, MIRA, json.loads(FITS))


async def test_a_run_is_resumed_with_no_other_model_than_it_was_begun_with(tmp_path: Path) -> None:
    class Town(BaseModel):
        people: int

    async with Hybrid(near=ScriptedAgent([FITS, "hello"]), records=tmp_path) as hybrid:
        await hybrid.run("Who?", output=Person, idempotency_key="one")
        await hybrid.run("Greet me.", idempotency_key="two")
        with pytest.raises(InvalidRequest, match="the answer of run one is no Town"):
            await hybrid.resume("one", output=Town)
        with pytest.raises(InvalidRequest, match="run two was begun without an output"):
            await hybrid.resume("two", output=Town)


async def test_a_validator_that_stumbles_over_an_answer_counts_as_one_that_refuses_it() -> None:
    class Town(BaseModel):
        name: object

        @field_validator("name")
        @classmethod
        def _strip(cls, value: object) -> object:
            return value.strip()  # type: ignore[attr-defined]  # as a number is not expected

    near = ScriptedAgent(['{"name": 5}', '{"name": " Lima "}'])
    async with Hybrid(near=near) as hybrid:
        assert (await hybrid.run("Where?", output=Town)).output == Town(name="Lima")
    assert "a validator of Town failed: AttributeError" in near.requests[1].messages[-1].text


@pytest.mark.parametrize("wrong", [list[int], int, "Person", MIRA, BaseModel])
async def test_what_is_neither_model_nor_schema_is_refused(wrong: object) -> None:
    async with Hybrid(near=ScriptedAgent([])) as hybrid:
        with pytest.raises(InvalidRequest, match="output must be a pydantic model class or a JSON Schema"):
            await hybrid.run("Who?", output=wrong)  # type: ignore[arg-type]


async def test_an_option_of_resume_that_there_is_not_is_refused(tmp_path: Path) -> None:
    async with Hybrid(near=ScriptedAgent(["hello"]), records=tmp_path) as hybrid:
        await hybrid.run("Greet me.", idempotency_key="one")
        with pytest.raises(InvalidRequest, match="unknown option 'timeout'"):
            await hybrid.resume("one", timeout=5)  # type: ignore[call-arg]
