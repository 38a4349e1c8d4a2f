"""The configuration page lists every key as the code has it, and no other."""

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from pages import ROOT

from nearfar.orchestrator.compose.config import Config
from nearfar.orchestrator.compose.policy_file import config_schema
from nearfar.orchestrator.task.policy import PRESETS, Preset
from scripts import configuration_tables

PAGE = (ROOT / "docs" / "configuration.md").read_text(encoding="utf-8")


def test_the_tables_are_those_of_the_code() -> None:
    assert configuration_tables.written(PAGE) == PAGE, "run `make reference`"


def test_each_table_stands_on_the_page_once() -> None:
    assert sorted(name for _, name, _ in configuration_tables.TABLE.findall(PAGE)) == sorted(configuration_tables.SECTIONS)


def test_every_key_has_a_description_and_values() -> None:
    rows = [line for _, _, table in configuration_tables.TABLE.findall(PAGE) for line in table.splitlines()[2:]]
    assert len(rows) > 200
    assert [row for row in rows if row.endswith("|  |") or "|  |" in row] == []


def test_every_section_of_the_configuration_has_a_table() -> None:
    sections = {name for name, found in config_schema()["$defs"].items() if "properties" in found}
    shown_in_cells = {"Range", "Hours", "LongPrompt"}
    of_plugins = {"NearPluginConfig", "FarPluginConfig"}
    assert sections - set(configuration_tables.SECTIONS.values()) == shown_in_cells | of_plugins


def test_every_section_of_the_file_has_a_heading_and_every_key_above_them_is_named() -> None:
    for name, field in Config.model_fields.items():
        assert f"## `[{name}]`" in PAGE or (field.annotation in (str, tuple[str, ...]) and f"`{name} = " in PAGE), name


def test_table_of_presets_matches_the_code() -> None:
    table = re.search(r"<!-- presets -->\n\n((?:\|.*\n)+)", PAGE)
    assert table is not None
    header, _, *rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in table[1].splitlines()]
    assert header == ["key", *(f"`{preset}`" for preset in Preset)]
    for place, preset in enumerate(Preset, start=1):
        shown = {row[0]: row[place] for row in rows if row[place]}
        assert shown == {f"`{key}`": f"`{json.dumps(value)}`" for key, value in flat(PRESETS[preset])}


def flat(values: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, object]]:
    """Yield the keys as the file writes them, with their values."""
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield from flat(value, f"{before}{name}.")
        else:
            yield f"{before}{name}", value
