"""The figures of the evidence on recorded drafts, and how those drafts are read."""

from pathlib import Path

import pytest

pytest.importorskip("numpy", reason="the figures are computed with numpy")

from benchmarks.routing_figures.evidence import figures
from benchmarks.routing_figures.raw_calls import tool_specs, written_calls

DATA = Path(__file__).parents[3] / "shared" / "data" / "routing"
TRIANGLE = {
    "name": "geometry.area",
    "description": "Area of a triangle",
    "parameters": {"type": "dict", "properties": {"base": {"type": "float"}, "ids": {"type": "tuple"}}, "required": ["base"]},
}


@pytest.mark.parametrize(
    ("result", "is_clean"),
    [
        ('\n{"tool_calls": [{"name": "geometry.area", "arguments": {"base": 10}}]}', True),
        ('<tool_call>\n{"arguments": {"base": 10}, "name": "geometry_area"}\n</tool_call>\n', True),
        ("\n\n[geometry.area(base=10)]", True),
        ("<|start|>[geometry.area({'base': 10})]", True),
        ([{"geometry_area": '{"base": 10}'}], True),
        ("```python\ngeometry.area(base=10)\n```\nIt computes the area (in cm).", False),
        ("I call geometry.area(base=10), as you asked", False),
    ],
    ids=["JSON", "tagged", "Python", "a dictionary", "parsed already", "a block of code", "prose"],
)
def test_calls_are_found_in_what_every_maker_writes(result: str | list[dict[str, str]], is_clean: bool) -> None:
    written = written_calls(result, [TRIANGLE])
    assert [(call.name, call.arguments) for call in written.calls] == [("geometry_area", {"base": 10})]
    assert written.is_clean == is_clean


@pytest.mark.parametrize("result", ["[]", "I cannot do that.", "geometry.area(", "{", "geometry.area(base=)", ""])
def test_where_there_is_no_call_none_is_found(result: str) -> None:
    assert written_calls(result, [TRIANGLE]).calls == ()


def test_types_of_other_languages_become_those_of_a_schema() -> None:
    (spec,) = tool_specs([TRIANGLE])
    assert spec.parameters == {
        "type": "object",
        "required": ["base"],
        "properties": {"base": {"type": "number"}, "ids": {"type": "array"}},
    }


@pytest.mark.skipif(not DATA.is_dir(), reason="the recorded outcomes are not there")
def test_evidence_recovers_and_saves_what_it_has_to() -> None:
    found = figures(DATA, quick=True)
    assert found["bfcl_apgr"]["value"] >= 0.945
    assert found["bfcl_cpt80"] <= 23
    assert found["bfcl_dollars_saved"]["value"] >= 0.70
    assert found["bfcl_dollars_accuracy"] >= found["bfcl_always_far"]
    assert found["crux_apgr"]["value"] >= 0.69
    assert found["math_apgr"]["value"] >= 0.75
    assert all(found[f"{name}_apgr"]["value"] > found[f"{name}_apgr_disagreement_length"] for name in ("bfcl", "crux", "math"))
    assert min(found[f"bfcl_sequence_utility_over_{way}"]["value"] for way in ("no_look", "all_looks", "always_far")) > 0
