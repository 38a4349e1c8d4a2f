"""The figures of answers in prose."""

import pytest

pytest.importorskip("numpy", reason="the figures are computed with numpy")

from benchmarks.routing_figures.prose import _template, _written
from benchmarks.routing_figures.prose_templates import TRACED, WORKED, is_held_out
from nearfar.orchestrator.routing.answers import Answer

MATHS = {"id": "1", "prompt": "What is the value of $x$?"}
CODE = {"id": "2", "prompt": "Complete the assertion.\n\nassert f(1) == ?"}
DEVELOPED = [template for number, template in enumerate(WORKED) if not is_held_out(number)]
TRACES = [template for number, template in enumerate(TRACED) if not is_held_out(number)]


@pytest.mark.parametrize("answer", ["-1234", "17,700", "5/3", "3√2", "0.25"])
@pytest.mark.parametrize("template", DEVELOPED)
def test_an_answer_is_found_in_the_prose_of_a_solution(template: str, answer: str) -> None:
    text = _written(MATHS, 0, answer, template)
    assert Answer.of_text(text, prompt=MATHS["prompt"]).agrees(Answer.of_whole(answer)), text


@pytest.mark.parametrize("answer", ["[1, (2, 'a')]", "'ab cd'", "{'a': [1]}", "True", "-7"])
@pytest.mark.parametrize("template", TRACES)
def test_a_value_is_found_in_the_trace_of_a_program(template: str, answer: str) -> None:
    text = _written(CODE, 1, answer, template)
    assert Answer.of_text(text, prompt=CODE["prompt"]).agrees(Answer.of_whole(answer)), text


def test_two_models_write_the_same_answer_in_different_ways_and_each_always_in_the_same() -> None:
    first, second, again = (_written(MATHS, number, "42", _template(MATHS, number, DEVELOPED)) for number in (0, 1, 0))
    assert first != second
    assert first == again


def test_an_output_that_was_cut_off_holds_no_answer_of_another_one() -> None:
    texts = [_written(MATHS, number, None, DEVELOPED[number]) for number in (0, 1)]
    first, second = (Answer.of_text(text, prompt=MATHS["prompt"]) for text in texts)
    assert not first.agrees(second)
