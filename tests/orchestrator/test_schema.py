"""The JSON Schema of nearfar.toml: its descriptions are read from the source, where that is installed."""

from pydantic import create_model

from nearfar.orchestrator.compose.policy_file import config_schema, docstrings
from nearfar.orchestrator.task.stores import RunsConfig


def test_a_key_is_described_by_the_docstring_behind_it() -> None:
    found = config_schema()["$defs"]["RunsConfig"]["properties"]
    assert found["keep"]["description"] == docstrings(RunsConfig)["keep"] != ""


def test_every_key_is_described() -> None:
    schema = config_schema()
    sections = {"": schema} | schema["$defs"]
    keys = [(name, key, about) for name, section in sections.items() for key, about in section.get("properties", {}).items()]
    assert len(keys) > 200
    assert [f"{name}.{key}" for name, key, about in keys if not about.get("description")] == []


def test_a_section_without_its_source_has_no_descriptions() -> None:
    assert docstrings(create_model("Section", key=(int, 1))) == {}
