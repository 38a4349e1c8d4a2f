"""`nearfar budget`: what was spent, by all processes that share a folder, and how a scope is reset."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from nearfar import Hybrid
from nearfar.orchestrator.cli import app
from nearfar.orchestrator.task.policy import Policy
from nearfar.orchestrator.task.stores import RunsConfig
from nearfar.protocols import BudgetExceeded, Finished, FinishReason, ScriptedAgent, Usage

pytestmark = pytest.mark.anyio

LIMITS = {"user": {"tokens": 2000}, "day": {"dollars": 2.0}}


@pytest.fixture
def configuration(tmp_path: Path) -> Path:
    path = tmp_path / "nearfar.toml"
    path.write_text('[runs]\nfolder = "runs"\n[policy.limits.user]\ntokens = 2000\n[policy.limits.day]\ndollars = 2.0\n', encoding="utf-8")
    return path


def shown(configuration: Path) -> list[dict[str, object]]:
    done = CliRunner().invoke(app, ["budget", "show", "--json", "--config", str(configuration)])
    assert done.exit_code == 0, done.output
    scopes: list[dict[str, object]] = json.loads(done.stdout)["scopes"]
    return scopes


async def ask(configuration: Path, *, user: str = "ana") -> None:
    policy = Policy.model_validate({"strategy": "device", "limits": LIMITS})
    runs = RunsConfig(folder=configuration.parent / "runs")
    end = Finished(reason=FinishReason.STOP, model="m", usage=Usage(input_tokens=998, output_tokens=2))
    near = ScriptedAgent([("Lima.", end)], name="near")
    async with Hybrid(near=near, policy=policy, records=runs) as hybrid:
        await hybrid.run("What is the capital of Peru?", user=user, session="chat")


async def test_what_one_process_has_spent_holds_the_next_one_back_until_it_is_reset(configuration: Path) -> None:
    await ask(configuration)
    scopes = {str(scope["scope"]): scope for scope in shown(configuration)}
    assert scopes["user"]["name"] == "ana"
    assert scopes["user"]["cap"] == {"dollars": None, "tokens": 2000, "seconds": None, "joules": None}
    assert scopes["user"]["spent"]["tokens"] == 1000  # type: ignore[index]  # JSON
    assert scopes["day"]["reserved"] == {"dollars": 0, "tokens": 0, "seconds": 0, "joules": 0}
    await ask(configuration)
    with pytest.raises(BudgetExceeded, match="limit for the user"):
        await ask(configuration)
    await ask(configuration, user="ben")
    done = CliRunner().invoke(app, ["budget", "reset", "user:ana", "--config", str(configuration)])
    assert "user:ana is back at zero" in done.stdout
    await ask(configuration)


@pytest.mark.usefixtures("wide_terminal")
async def test_the_table_names_spent_and_cap_of_each_scope(configuration: Path) -> None:
    await ask(configuration)
    done = CliRunner().invoke(app, ["budget", "show", "--config", str(configuration)])
    assert done.exit_code == 0
    assert "1000 of 2000" in done.stdout
    assert "of 2.0000" in done.stdout
    assert "session:ana/chat" in done.stdout


@pytest.mark.parametrize("scope", ["week", "user", "day:2026-11-21", "user:nobody"])
def test_a_scope_that_there_is_none_of_is_a_mistake_on_the_command_line(configuration: Path, scope: str) -> None:
    done = CliRunner().invoke(app, ["budget", "reset", scope, "--json", "--config", str(configuration)])
    assert done.exit_code == 2
    assert json.loads(done.stdout)["error"]["type"] == "ConfigError"


def test_without_runs_each_process_keeps_its_own_sums(tmp_path: Path) -> None:
    path = tmp_path / "nearfar.toml"
    path.write_text("[policy.limits.day]\ndollars = 2.0\n", encoding="utf-8")
    done = CliRunner().invoke(app, ["budget", "show", "--json", "--config", str(path)])
    assert done.exit_code == 2
    assert "[runs]" in json.loads(done.stdout)["error"]["hint"]
