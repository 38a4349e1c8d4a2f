"""What each look at a draft finds."""

import pytest

from nearfar.orchestrator.routing.answers import Answer
from nearfar.orchestrator.routing.call_looks import call_check, call_form
from nearfar.orchestrator.routing.looks import (
    CROWD,
    FREE,
    Cost,
    Look,
    crowd,
    free_findings,
    prompt_surface,
    second_opinion,
    text_form,
    token_confidence,
)
from nearfar.protocols import InvalidRequest, ToolCall, ToolSpec

PAY = ToolSpec(
    name="pay",
    description="Pay money to a person",
    parameters={
        "type": "object",
        "properties": {"to": {"type": "string"}, "amount": {"type": "integer"}, "currency": {"enum": ["EUR", "USD"]}},
        "required": ["to", "amount"],
    },
)
WEATHER = ToolSpec(name="weather", description="Weather of a city")


def pay(**arguments: str | int) -> ToolCall:
    return ToolCall(id="1", name="pay", arguments=dict(arguments))


@pytest.mark.parametrize(
    ("call", "is_valid", "has_more"),
    [
        (pay(to="Mira", amount=20), 1, 0),
        (pay(to="Mira", amount=20, currency="EUR"), 1, 0),
        (pay(to="Mira"), 0, 0),
        (pay(to="Mira", amount="20"), 0, 0),
        (pay(to="Mira", amount=20, currency="GBP"), 0, 0),
        (pay(to="Mira", amount=20, note="rent"), 1, 1),
        (ToolCall(id="1", name="send", arguments={}), 0, 0),
    ],
    ids=["right", "with an option", "one missing", "wrong type", "not in the enum", "one that is not declared", "unknown tool"],
)
def test_a_call_is_checked_against_its_tool(call: ToolCall, is_valid: float, has_more: float) -> None:
    assert call_check([call], [PAY, WEATHER]).measures == {"is valid": is_valid, "has further arguments": has_more}


def test_a_schema_that_is_none_is_refused() -> None:
    broken = ToolSpec(name="pay", parameters={"type": "object", "properties": {"to": {"$ref": "#/nowhere"}}})
    with pytest.raises(InvalidRequest):
        call_check([pay(to="Mira")], [broken])


def test_the_form_of_calls_tells_what_the_prompt_speaks_of() -> None:
    asked = call_form([pay(to="Mira Falk", amount=20)], [PAY, WEATHER], "Please pay 20 to Mira Falk.")
    invented = call_form([pay(to="Jonas Ott", amount=70)], [PAY, WEATHER], "Please pay 20 to Mira Falk.")
    assert asked.measures["least value in the prompt"] == 1
    assert invented.measures["least value in the prompt"] == 0
    assert call_form([], [WEATHER], "Please pay 20 to Mira Falk.").measures["best tool in the prompt"] == 0


def test_a_draft_that_makes_no_call_is_told_from_one_that_does() -> None:
    none, two = (call_form(calls, [PAY], "Pay").measures for calls in ([], [pay(to="a"), pay(to="a")]))
    assert (none["no call"], none["calls"], two["no call"], two["calls"], two["repeats itself"]) == (1, 0, 0, 2, 1)


def test_the_least_confident_step_counts_and_unknown_ones_do_not() -> None:
    assert token_confidence([0.9, None, 0.5]) == token_confidence([0.5])
    assert token_confidence([0.5]).measures == {"lowest confidence": 0}
    assert token_confidence([None]).measures == {}


def test_a_second_opinion_agrees_or_not_and_keeps_its_answer() -> None:
    finding = second_opinion(Answer.of_text("7"), Answer.of_text("7.0"), is_valid=True, further={"length": 3.0})
    assert (finding.measures["agrees"], finding.measures["is valid"], finding.measures["length"]) == (1, 1, 3)
    assert finding.answer == Answer.of_text("7")
    assert second_opinion(Answer.of_text("7"), Answer.of_text(None)).measures["says nothing"] == 1


def test_a_crowd_against_the_draft_is_told_from_scattered_opinions() -> None:
    draft = Answer.of_text("7")
    against, scattered = ([Answer.of_text(text) for text in texts] for texts in (("8", "8", "8"), ("7", "8", "9")))
    assert [crowd(draft, against)[measure] for measure in CROWD] == [0, 3, 1]
    assert [crowd(draft, scattered)[measure] for measure in CROWD] == [1, 1, 2]


def test_the_form_of_a_text_tells_numbers_literals_and_silence() -> None:
    number, literal, nothing = (text_form(text, "is it 7?").measures for text in ("7", "[7]", None))
    assert (number["is a number"], number["stands in the prompt"], literal["is a literal"], nothing["is empty"]) == (1, 1, 1, 1)


def test_predictions_of_the_head_join_what_the_prompt_shows() -> None:
    assert prompt_surface("Hello", {"near": 0.5}).measures["log odds of near"] == 0
    assert "log odds of near" not in prompt_surface("Hello").measures


def test_all_free_looks_come_together_and_what_is_unknown_finds_nothing() -> None:
    found = free_findings("What is 3 + 4?", "7", is_valid=None, is_grounded=None, confidence=0.8)
    assert tuple(found) == FREE
    assert [name for name in FREE if not found[name].measures] == ["schema", "grounding"]


def test_a_look_is_free_where_it_takes_nothing() -> None:
    assert Look(name="schema").is_free
    assert not Look(name="near-2", cost=Cost(seconds=0.5)).is_free
