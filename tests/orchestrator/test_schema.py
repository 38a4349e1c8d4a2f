"""The JSON Schema of nearfar.toml: its descriptions are read from the source, where that is installed."""

from pydantic import create_model

from nearfar.orchestrator.compose.schema import config_schema, docstrings
from nearfar.orchestrator.task.stores import RunsConfig


def test_a_key_is_described_by_the_docstring_behind_it() -> None:
    found = config_schema()["$defs"]["RunsConfig"]["properties"]
    assert found["keep"]["description"] == docstrings(RunsConfig)["keep"] != ""


def test_a_section_without_its_source_has_no_descriptions() -> None:
    assert docstrings(create_model("Section", key=(int, 1))) == {}
