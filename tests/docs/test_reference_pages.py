"""The reference pages are what the docstrings and the commands say."""

import re

import pytest
from pages import anchors_of

import nearfar
from scripts import reference


def test_the_api_page_is_up_to_date() -> None:
    assert reference.API.read_text(encoding="utf-8") == reference.api(), "run `make reference`"


def test_the_page_of_commands_is_up_to_date() -> None:
    assert reference.CLI.read_text(encoding="utf-8") == reference.cli(), "run `make reference`"


def test_every_public_name_has_one_section() -> None:
    found = re.findall(r"^### `(\w+)`$", reference.API.read_text(encoding="utf-8"), re.MULTILINE)
    assert sorted([*found, "__version__"]) == sorted(nearfar.__all__)


def test_every_heading_of_the_api_page_has_names() -> None:
    assert not re.search(r"^## .+\n\n## ", reference.api(), re.MULTILINE)


@pytest.mark.parametrize("variables", [{"COLUMNS": "40"}, {"COLUMNS": "300", "FORCE_COLOR": "1"}, {"NO_COLOR": "1", "TERM": "dumb"}])
def test_the_terminal_changes_nothing(variables: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert "\x1b" not in reference.cli()
    assert reference.CLI.read_text(encoding="utf-8") == reference.cli()


def test_every_option_of_a_command_is_listed_with_its_short_name() -> None:
    assert "| `--config`, `-c` path |" in reference.cli()
    assert "nearfar-serve-token-add" in anchors_of(reference.CLI)
