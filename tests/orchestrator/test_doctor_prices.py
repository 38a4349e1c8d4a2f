"""`nearfar doctor` says where a dollar limit meets an unknown price."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from nearfar.orchestrator.cli import app

FILE = """
[near]
model = "near"
[far]
provider = "openai"
model = "{model}"
base_url = "https://models.example.com/v1"
key_variable = "OUR_KEY"
{rest}
"""
PRICES = '[far.prices]\ninput = "1"\noutput = "2"\nsource = "our contract"\nas_of = 2026-11-01\n'


def findings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rest: str) -> list[dict[str, str]]:
    monkeypatch.setenv("OUR_KEY", "sk-none")
    file = tmp_path / "nearfar.toml"
    file.write_text(FILE.format(model="our-model", rest=rest), encoding="utf-8")
    done = CliRunner().invoke(app, ["doctor", "--json", "--config", str(file)])
    found: list[dict[str, str]] = json.loads(done.stdout)["findings"]
    assert any(finding["area"] == "agents" and finding["status"] == "ok" for finding in found), found
    return [finding for finding in found if finding["area"] == "prices"]


@pytest.mark.parametrize(("unknown", "said"), [("refuse", "its calls are refused"), ("allow", "its calls are not counted")])
def test_an_unknown_price_under_a_dollar_limit_is_risky(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, unknown: str, said: str) -> None:
    rest = f'[policy.limits]\nunknown_price = "{unknown}"\n[policy.limits.task]\ndollars = 0.5\n'
    (finding,) = findings(tmp_path, monkeypatch, rest)
    assert finding["status"] == "risky"
    assert "limited per task" in finding["detail"]
    assert said in finding["detail"]
    assert "far.prices" in finding["advice"]


@pytest.mark.parametrize("rest", ["", f"{PRICES}[policy.limits.task]\ndollars = 0.5\n", "[policy.limits.task]\ntokens = 500\n"])
def test_without_a_dollar_limit_or_with_a_price_nothing_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rest: str) -> None:
    assert findings(tmp_path, monkeypatch, rest) == []
