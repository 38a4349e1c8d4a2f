"""Where the answer stands in a text."""

import re
import sys
from collections.abc import Iterator
from types import FrameType, ModuleType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nearfar.orchestrator.routing import answers, forms, meaning, passages, quantities
from nearfar.orchestrator.routing.answers import Answer, answer_field, extract

MATHS = "What is the value of $x$ in $x + 3 = 45$?"
CODE = "Complete the assertion.\n\ndef f(x):\n    return x\n\nassert f(1) == ?"
CHOICES = "Which city is the capital of France?\n(A) Rome\n(B) Paris\n(C) Bonn"


@pytest.mark.parametrize(
    ("text", "prompt", "answer", "source"),
    [
        ("First 40, then 2.\n\nSo $x = \\boxed{\\frac{84}{2}}$.", MATHS, "42", "boxed"),
        ("We try 3 and 45.\n\n**Answer:** 42", MATHS, "42", "answer line"),
        ("We try 3.\nFinal answer: 42\n\nLet me know if 45 is unclear!", MATHS, "42", "answer line"),
        ("It follows that the answer to the question is therefore 42, not 48.", MATHS, "42", "answer line"),
        ("Wir rechnen 45 - 3.\n\nDie Antwort lautet 42.", MATHS, "42", "answer line"),
        ("On calcule 45 - 3.\n\nLa réponse est 42.", MATHS, "42", "answer line"),
        ("Calculamos 45 - 3.\n\nRespuesta final: **42**", MATHS, "42", "answer line"),
        ("Subtract 3 from 45.\n\n#### 42", MATHS, "42", "answer line"),
        ("<think>45 less 3</think><answer>42</answer>", MATHS, "42", "answer line"),
        ("## Solution\n\nSubtract 3 from 45.\n\n## Answer\n\n42", MATHS, "42", "answer line"),
        ("45 = 3 + x, thus **42** is what we want.", MATHS, "42", "emphasis"),
        ("We subtract 3 from both sides.\n\n\\[\nx = 45 - 3 = 42\n\\]", MATHS, "42", "emphasis"),
        ("We subtract 3 from both sides, and that makes 42 in the end.", MATHS, "42", "number"),
        ("Distance: 3 h at 14 km/h, hence 42 km. I hope this helps 100%!", MATHS, "42 km", "number"),
        ('{"reasoning": "45 less 3", "answer": "42"}', MATHS, "42", "field"),
        ('{"answer": 42}', MATHS, "42", "field"),
        ("The loop runs 3 times.\n\n```python\nassert f(1) == [1, 'a']\n```", CODE, "[1, 'a']", "code block"),
        ("After 3 steps the function returns 'a, b'.", CODE, "'a, b'", "entity"),
        ("It is Paris, so option B.", CHOICES, "B", "choice"),
        ("The answer is (B) Paris.", CHOICES, "B", "answer line"),
        ("Answer: Paris", CHOICES, "B", "answer line"),
        ("Paris", CHOICES, "B", "choice"),
        ("No, 7 is larger than 5.", "Is 5 larger than 7?", "no", "choice"),
        ("The treaty was signed on March 5, 2024 in Rome.", "When was the treaty signed?", "2024-03-05", "date"),
        ("The capital of France is Paris.", "What is the capital of France?", "Paris", "entity"),
        ("42", MATHS, "42", "text"),
        ("It was never signed.\n\nAnswer:\nNo.", "Is it signed?", "no", "answer line"),
    ],
)
def test_the_answer_is_found_in_the_way_it_is_written(text: str, prompt: str, answer: str, source: str) -> None:
    found = Answer.of_text(text, prompt=prompt)
    assert found.found is not None
    assert (found.agrees(Answer.of_whole(answer)), found.found.source) == (True, source), found.found


@pytest.mark.parametrize(
    "text",
    [
        "The company was founded in 1998 and has grown ever since, so it opened 3 more offices.",
        "Dear Mira,\n\nthank you for the 2 letters. We have read them with pleasure.",
    ],
)
def test_a_text_of_which_no_value_was_asked_is_compared_as_a_whole(text: str) -> None:
    assert extract(text, prompt="Write a few words about the company.").source == "text"


@pytest.mark.parametrize(
    ("schema", "field"),
    [
        ({"properties": {"why": {}, "n": {}}, "required": ["n"]}, "n"),
        ({"properties": {"answer": {}, "amount": {}}}, None),
        ({"properties": {"category": {}, "amount": {}}, "required": ["category"]}, None),
        ({"properties": {"total": {}}}, "total"),
        ({"properties": {"why": {}, "final_answer": {}}, "required": ["why", "final_answer"]}, "final_answer"),
        ({"properties": {"name": {}, "age": {}}, "required": ["name", "age"]}, None),
        ({"type": "array"}, None),
    ],
)
def test_the_field_of_the_answer_is_told_by_the_schema(schema: dict[str, Any], field: str | None) -> None:
    assert answer_field(schema) == field


@pytest.mark.parametrize(
    ("first", "second", "prompt"),
    [
        ("Answer: 15:00 UTC", "Answer: 16:00 UTC", "When?"),
        ("Answer: 2024-03-04 15:00", "Answer: 2024-03-05 15:00", "When?"),
        ("It departs at 9:30 and arrives at 11:00.", "It departs at 9:45 and arrives at 11:00.", "When does it depart?"),
        ("So the ratio is 3:5.", "So the ratio is 4:5.", "What is the ratio?"),
        ("Answer: x = 5, y = 3", "Answer: x = 4, y = 3", MATHS),
        ("Answer: x = 5 or x = -5", "Answer: x = -5", MATHS),
        ("Answer: x >= 5", "Answer: 5", MATHS),
        ("Answer: x != 5", "Answer: x = 5", MATHS),
        ("Find \\boxed{1} and \\boxed{2}.", "Find \\boxed{3} and \\boxed{2}.", MATHS),
        ("Ann has 5 and Bob has 7.", "Ann has 6 and Bob has 7.", "How many does each have?"),
        ("The answer cannot be 12.", "The answer is 12.", MATHS),
        ("Answer: 5\n\nHmm, no, actually it is 6.", "Answer: 5", MATHS),
        ("> Answer: 5\n\nNo. It is 6.", "5", MATHS),
        ("```\nx = 1\n```\nThe result is 7.", "```\nx = 1\n```\nThe result is 8.", "Compute."),
        ("(A) is tempting, but (B) is right.", "A", CHOICES),
        ("Both (A) and (B)", "B", CHOICES),
        ("Everything except (C).", "C", CHOICES),
        ("No doubt it is void.", "No, it is valid.", "Is it void?"),
        ("Yes, but only if it was not signed.", "Yes.", "Is it void?"),
        ('{"answer": "yes", "amount": 3, "why": ""}', '{"answer": "yes", "amount": 4, "why": ""}', ""),
    ],
)
def test_different_answers_in_nearly_the_same_words_do_not_agree(first: str, second: str, prompt: str) -> None:
    one, other = (Answer.of_text(text, prompt=prompt) for text in (first, second))
    assert not one.agrees(other), (one, other)


def test_a_remark_of_any_schema_makes_no_difference() -> None:
    schema: dict[str, Any] = {"properties": {"to": {}, "amount": {}, "confidence": {}}}
    first, second, third = (
        Answer.of_text(f'{{"to": "Ann", "amount": {amount}, "confidence": {sure}}}', schema=schema)
        for amount, sure in ((3, 0.9), (3, 0.8), (4, 0.9))
    )
    assert first.agrees(second)
    assert not first.agrees(third)


def test_the_field_of_the_schema_is_compared_and_named() -> None:
    schema: dict[str, Any] = {"properties": {"why": {}, "result": {}}}
    first, second = (Answer.of_text(f'{{"why": "{why}", "result": 1500}}', schema=schema) for why in ("so", "because"))
    assert first.agrees(second)
    assert str(first.found) == "1500 (result)"


def test_an_object_without_such_a_field_is_compared_whatever_the_order_of_its_keys() -> None:
    schema: dict[str, Any] = {"properties": {"name": {}, "age": {}}}
    first, second = (Answer.of_text(text, schema=schema) for text in ('{"name": "Mira", "age": 4}', '{"age": 4.0, "name": "Mira"}'))
    assert first.agrees(second)
    assert not first.agrees(Answer.of_text('{"name": "Mira", "age": 5}', schema=schema))


@given(
    st.integers(-(10**6), 10**6), st.integers(-(10**6), 10**6), st.sampled_from(["Answer: {}", "So x is {}.", "\\boxed{{{}}}", "= {} km"])
)
def test_the_same_prose_with_another_number_never_agrees(first: int, second: int, template: str) -> None:
    texts = [f"Start with 7 and go on to 12 step by step.\n\n{template.format(number)}" for number in (first, second)]
    one, other = (Answer.of_text(text, prompt=MATHS) for text in texts)
    assert one.agrees(other) == (first == second)


@given(
    st.text(max_size=200) | st.text(alphabet="answer: boxed{}\\$*`[]()'\"\n=1.,AB ", max_size=200),
    st.sampled_from([MATHS, CODE, CHOICES, ""]),
)
def test_something_is_found_in_any_text_and_a_text_agrees_with_itself(text: str, prompt: str) -> None:
    first, second = (Answer.of_text(text, prompt=prompt) for _ in range(2))
    assert first.agrees(second) == bool(text.strip())


@pytest.mark.parametrize("module", [answers, forms, meaning, passages, quantities], ids=lambda module: module.__name__.rsplit(".")[-1])
def test_no_pattern_repeats_without_a_bound(module: ModuleType) -> None:
    patterns = [value for value in vars(module).values() if isinstance(value, re.Pattern)]
    assert patterns
    assert not [pattern.pattern for pattern in patterns if any(highest > 2000 for highest in _repetitions(pattern))]


@pytest.mark.parametrize("piece", ["answer ", "\\boxed{", "[1,", "**a ", "1,", "$$ ", "So it is. ", "{", '"', "```\n", "(A) ", "\\frac{1}"])
def test_the_work_does_not_grow_faster_than_the_text(piece: str) -> None:
    short, long = (_lines_run(piece * count) for count in (1_000, 8_000))
    assert long <= 9 * short + 10_000


def _repetitions(pattern: re.Pattern[str]) -> Iterator[int]:
    """Yield the upper bounds of all repetitions in a pattern."""
    waiting: list[Any] = [re._parser.parse(pattern.pattern, pattern.flags)]  # type: ignore[attr-defined]
    while waiting:
        part = waiting.pop()
        if isinstance(part, tuple) and len(part) == 2 and str(part[0]).endswith("_REPEAT"):
            yield int(part[1][1])
        if isinstance(part, (list, tuple, re._parser.SubPattern)):  # type: ignore[attr-defined]
            waiting.extend(part)


def _lines_run(text: str) -> int:
    """Return how many lines of Python it takes to find the answer."""
    count = 0

    def trace(_frame: FrameType, event: str, _argument: object) -> Any:  # noqa: ANN401 - as sys.settrace has it
        nonlocal count
        count += event == "line"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        Answer.of_text(text, prompt=MATHS)
    finally:
        sys.settrace(before)
    return count
