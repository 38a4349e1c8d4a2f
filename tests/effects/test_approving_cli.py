"""A run of the shipped model that waits for somebody's yes, from the command line."""

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from nearfar.orchestrator.cli import app
from nearfar.orchestrator.cli.selection import DEMO_SEED
from nearfar.orchestrator.lab.worlds.loading import SearchWorld

pytestmark = pytest.mark.timeout(180)

WORLD = SearchWorld()
TASK = next(task for task in WORLD.tasks(25, DEMO_SEED) if len(WORLD.question(task).program.steps) == 1)
TOOLS = """
from nearfar import tool
from nearfar.orchestrator.cli.selection import DEMO_SEED
from nearfar.orchestrator.lab.worlds.loading import SearchWorld

world = SearchWorld()
plain = {each.name: each.function for each in world.reset(world.tasks(1, DEMO_SEED)[0]).tools}
search = tool(name="search", effect="read")(plain["search"])
open_section = tool(name="open", approval=True)(plain["open"])
"""


@pytest.fixture
def configured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("tools.py").write_text(TOOLS, encoding="utf-8")
    Path("nearfar.toml").write_text('[near]\nmodel = "near"\n[runs]\nfolder = "runs"\n', encoding="utf-8")


def nearfar(*arguments: str, code: int) -> Any:  # noqa: ANN401 - JSON
    done = CliRunner().invoke(app, [*arguments, "--json"])
    assert done.exit_code == code, done.output
    return json.loads(done.stdout)


@pytest.mark.usefixtures("configured")
def test_a_run_without_a_terminal_stops_and_goes_on_when_somebody_says_yes() -> None:
    stopped = nearfar("run", TASK.prompt, "--tools", "tools.py", "--strategy", "device", code=2)["error"]
    assert stopped["type"] == "ApprovalNeeded"
    (run,) = nearfar("runs", "list", code=0)["runs"]
    assert run["state"] == "waiting"
    assert f"nearfar runs resume {run['id']} --approve" in stopped["hint"]
    (request,) = nearfar("runs", "show", run["id"], code=0)["waits_for"]
    assert request["call"]["name"] == "open"
    again = nearfar("runs", "resume", run["id"], "--tools", "tools.py", code=2)["error"]
    assert again["type"] == "ApprovalNeeded"
    result = nearfar("runs", "resume", run["id"], "--approve", request["id"], "--tools", "tools.py", code=0)
    assert result["text"] == WORLD.question(TASK).answer
    assert nearfar("runs", "show", run["id"], code=0)["run"]["state"] == "done"
