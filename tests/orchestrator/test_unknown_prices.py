"""`nearfar doctor`, `nearfar policy check` and the first task say where a dollar limit meets an unknown price."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from nearfar import Hybrid, Policy
from nearfar.orchestrator.cli import app
from nearfar.protocols import Prices, ScriptedAgent, Side

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


LIMITED = "[policy.limits.task]\ndollars = 0.5\n"
SILENT = ["", f"{PRICES}{LIMITED}", "[policy.limits.task]\ntokens = 500\n"]


def written(tmp_path: Path, rest: str) -> Path:
    file = tmp_path / "nearfar.toml"
    file.write_text(FILE.format(model="our-model", rest=rest), encoding="utf-8")
    return file


def findings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rest: str) -> list[dict[str, str]]:
    monkeypatch.setenv("OUR_KEY", "sk-none")
    done = CliRunner().invoke(app, ["doctor", "--json", "--config", str(written(tmp_path, rest))])
    found: list[dict[str, str]] = json.loads(done.stdout)["findings"]
    assert any(finding["area"] == "agents" and finding["status"] == "ok" for finding in found), found
    return [finding for finding in found if finding["area"] == "prices"]


@pytest.mark.parametrize(("unknown", "said"), [("refuse", "its calls are refused"), ("allow", "its calls are not counted")])
def test_an_unknown_price_under_a_dollar_limit_is_risky(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, unknown: str, said: str) -> None:
    rest = f'[policy.limits]\nunknown_price = "{unknown}"\n[policy.limits.task]\ndollars = 0.5\n'
    (finding,) = findings(tmp_path, monkeypatch, rest)
    assert finding["status"] == "risky"
    assert "limited per task ($0.5), and the price of far (model 'our-model')" in finding["detail"]
    assert said in finding["detail"]
    assert "far.prices" in finding["advice"]


@pytest.mark.parametrize("rest", SILENT)
def test_without_a_dollar_limit_or_with_a_price_nothing_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rest: str) -> None:
    assert findings(tmp_path, monkeypatch, rest) == []


def checked(tmp_path: Path, rest: str) -> list[dict[str, str]]:
    done = CliRunner().invoke(app, ["policy", "check", "--json", "--config", str(written(tmp_path, rest))])
    found: list[dict[str, str]] = json.loads(done.stdout)["findings"]
    return [finding for finding in found if "price" in finding["problem"]]


@pytest.mark.parametrize(
    ("rest", "where", "said"),
    [
        (LIMITED, "policy.limits", "limited per task ($0.5), and the price of far (model 'our-model') is unknown: its calls are refused"),
        (f"{LIMITED}[policy.limits]\nunknown_price = 'allow'\n", "policy.limits", "its calls are not counted"),
        ("[policy.router]\ndollars_per_hour = 2.0\n", "policy.router.dollars_per_hour", "limited per hour ($2)"),
    ],
)
def test_policy_check_warns_before_anything_is_opened(tmp_path: Path, rest: str, where: str, said: str) -> None:
    (finding,) = checked(tmp_path, rest)
    assert (finding["kind"], finding["where"]) == ("warning", where)
    assert said in finding["problem"]
    assert "nearfar prices import" in finding["hint"]


@pytest.mark.parametrize("rest", SILENT)
def test_policy_check_is_silent_where_no_dollars_are_limited_or_the_price_is_known(tmp_path: Path, rest: str) -> None:
    assert checked(tmp_path, rest) == []


def policy(**limits: object) -> Policy:
    return Policy.model_validate({"sensitivity": "public", "limits": limits})


@pytest.mark.anyio
async def test_the_first_task_warns_once(caplog: pytest.LogCaptureFixture) -> None:
    near, far = ScriptedAgent(lambda _: "from here", name="near"), ScriptedAgent(lambda _: "from there", name="far", side=Side.FAR)
    limited = policy(unknown_price="allow", day={"dollars": 2})
    async with Hybrid(near=near, far=far, policy=limited) as hybrid:
        for _ in range(2):
            await hybrid.run("hello")
    (said,) = [record.getMessage() for record in caplog.records if "price" in record.getMessage()]
    assert "limited per day ($2), and the price of far (model 'scripted') is unknown: its calls are not counted" in said


@pytest.mark.anyio
@pytest.mark.parametrize(("prices", "limits"), [(None, {}), (Prices.free("our own"), {"day": {"dollars": 2}})])
async def test_tasks_are_silent_without_a_dollar_limit_and_with_a_price(
    prices: Prices | None, limits: dict[str, object], caplog: pytest.LogCaptureFixture
) -> None:
    far = ScriptedAgent(lambda _: "from there", name="far", side=Side.FAR, prices=prices)
    async with Hybrid(far=far, policy=policy(**limits)) as hybrid:
        await hybrid.run("hello", strategy="cloud")
    assert not [record for record in caplog.records if "price" in record.getMessage()]
