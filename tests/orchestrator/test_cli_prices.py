"""`nearfar prices show | import`."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from nearfar.orchestrator.cli import app

MISTAKE = 2
ENTRY = {"litellm_provider": "openai", "mode": "chat", "input_cost_per_token": 1e-06, "output_cost_per_token": 2e-06}


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NEARFAR_HOME", str(tmp_path / "home"))


def call(*arguments: str) -> tuple[int, str]:
    done = CliRunner().invoke(app, ["prices", *arguments])
    return done.exit_code, done.stdout


def test_prices_are_shown_with_their_age_and_their_source() -> None:
    code, said = call("show", "claude-sonnet-5-5", "--json")
    shown = json.loads(said)
    assert code == 0
    assert [each["model"] for each in shown["prices"]] == ["claude-sonnet-5-5"]
    assert shown["prices"][0]["cache_write"] == "2.50"
    assert shown["prices"][0]["age_days"] >= 0
    assert shown["prices"][0]["source"].startswith("https://")
    assert shown["imported"] is None


def test_the_table_shows_the_rates_of_long_prompts() -> None:
    code, said = call("show", "gemini-2.5-pro")
    assert code == 0
    assert "above 200,000 tokens" in said


def test_an_unknown_name_is_a_mistake() -> None:
    code, said = call("show", "no-such-model", "--json")
    assert code == MISTAKE
    assert "no-such-model" in said


def test_imported_prices_are_shown_in_place_of_shipped_ones(tmp_path: Path) -> None:
    file = tmp_path / "table.json"
    file.write_text(json.dumps({"gpt-5.5": ENTRY, "our-model": ENTRY}), encoding="utf-8")
    code, said = call("import", str(file), "--as-of", "2026-11-01", "--json")
    assert (code, json.loads(said)["models"]) == (0, 2)
    shown = json.loads(call("show", "gpt-5.5", "--json")[1])
    mine = [each for each in shown["prices"] if each["model"] == "gpt-5.5"]
    assert [(float(each["input"]), each["as_of"]) for each in mine] == [(1.0, "2026-11-01")]
    assert shown["imported"] is not None
    assert len(json.loads(call("show", "our-model", "--json")[1])["prices"]) == 1


@pytest.mark.parametrize("day", ["yesterday", "2999-01-01"])
def test_a_day_that_cannot_be_is_a_mistake(tmp_path: Path, day: str) -> None:
    file = tmp_path / "table.json"
    file.write_text(json.dumps({"gpt-5.5": ENTRY}), encoding="utf-8")
    assert call("import", str(file), "--as-of", day, "--json")[0] == MISTAKE
    assert not (tmp_path / "home" / "prices.json").exists()
