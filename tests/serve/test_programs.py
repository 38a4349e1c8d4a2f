"""Codex and Claude Code, as their makers ship them, solve a task with two calls of their own tools, offline, by the HTTP server."""

import os
import platform
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import anyio
import pytest
from http_face import TOKEN, served
from node_environment import NODE_VENV

from nearfar import Hybrid, ScriptedAgent, Sensitivity, Side, StepRequest, ToolCall
from nearfar.orchestrator.compose.hub import CallerConfig
from nearfar.protocols.fakes import Reply

pytestmark = [pytest.mark.anyio, pytest.mark.skipif(platform.system() != "Linux", reason="the programs are looked for as Linux has them")]

PACKAGES: Final = NODE_VENV / "node_modules"
SECONDS: Final = 90
"""For which a program may run."""
NUMBER: Final = "4711"
TASK: Final = "Write a number, and read it."


def program(pattern: str) -> str:
    """Return the path of a program, or skip the test where it is not installed."""
    found = sorted(path for path in PACKAGES.glob(pattern) if os.access(path, os.X_OK))
    if not found:
        pytest.skip("the program is not installed: CI=true make node")
    return str(found[0])


def works(write: Callable[[Path], dict[str, Any]], read: Callable[[Path], dict[str, Any]], folder: Path) -> ScriptedAgent:
    """Return an agent that writes a number with one call, reads it with another, and tells what it has read."""

    def step(request: StepRequest) -> Reply:
        names = {tool.name for tool in request.tools}
        results = [message.tool_result for message in request.messages if message.tool_result is not None]
        calls = [write(folder), read(folder)]
        if not names >= {call["name"] for call in calls}:
            return "A title"  # which programs ask for beside the task
        if len(results) < len(calls):
            return ToolCall(id=f"call_{len(results)}", **calls[len(results)])
        return f"The number is {NUMBER}." if NUMBER in results[-1].content else f"No number: {results[-1].content}"

    return ScriptedAgent(step, name="far", side=Side.FAR, model="big")


async def run(command: list[str], folder: Path, **variables: str) -> str:
    """Run a program in a folder, with a home of its own and no other variables, and return what it has printed."""
    home = folder / "home"
    home.mkdir()
    environment = {"PATH": os.environ["PATH"], "HOME": str(home), "TMPDIR": str(folder), **variables}
    with anyio.fail_after(SECONDS):
        done = await anyio.run_process(command, cwd=folder, env=environment, input=b"", check=False)
    return f"{done.stdout.decode()}{done.stderr.decode()}"


async def test_codex_solves_a_task_with_two_calls(tmp_path: Path) -> None:
    codex = program("@openai/codex-linux-*/vendor/*/bin/codex")
    far = works(
        lambda folder: {"name": "exec_command", "arguments": {"cmd": f"printf {NUMBER} > number.txt"}},
        lambda folder: {"name": "exec_command", "arguments": {"cmd": "cat number.txt"}},
        tmp_path,
    )
    async with Hybrid(far=far) as hybrid, served(hybrid, CallerConfig(sensitivity=Sensitivity.PUBLIC)) as server:
        provider = {"name": "nearfar", "base_url": f"{server.address}/v1", "env_key": "NEARFAR_TOKEN", "wire_api": "responses"}
        settings = {
            "model": "nearfar/auto",
            "model_provider": "nearfar",
            "check_for_update_on_startup": "false",
            "analytics.enabled": "false",
        }
        settings |= {f"model_providers.nearfar.{name}": value for name, value in provider.items()}
        options = [part for name, value in settings.items() for part in ("-c", f"{name}={value}")]
        command = [
            codex,
            "exec",
            "--skip-git-repo-check",
            "--dangerously-bypass-approvals-and-sandbox",
            *options,
            "Write a number, and read it.",
        ]
        told = await run(command, tmp_path, NEARFAR_TOKEN=TOKEN)
    assert f"The number is {NUMBER}." in told
    assert (tmp_path / "number.txt").read_text(encoding="utf-8") == NUMBER


async def test_claude_code_solves_a_task_with_two_calls(tmp_path: Path) -> None:
    """Its own instructions hold a mail address, which keeps a public task here unless the policy allows such findings."""
    claude = program("@anthropic-ai/claude-code-linux-*/claude")
    far = works(
        lambda folder: {"name": "Write", "arguments": {"file_path": str(folder / "number.txt"), "content": NUMBER}},
        lambda folder: {"name": "Bash", "arguments": {"command": f"cat {folder / 'number.txt'}", "description": "Read the number"}},
        tmp_path,
    )
    switches = ("DISABLE_TELEMETRY", "DISABLE_ERROR_REPORTING", "DISABLE_AUTOUPDATER", "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC")
    hybrid = Hybrid(far=far, policy={"privacy": {"findings": "allow"}})
    async with hybrid, served(hybrid, CallerConfig(sensitivity=Sensitivity.PUBLIC)) as server:
        variables = {"ANTHROPIC_BASE_URL": server.address, "ANTHROPIC_AUTH_TOKEN": TOKEN, "IS_SANDBOX": "1", **dict.fromkeys(switches, "1")}
        command = [claude, "-p", TASK, "--model", "nearfar/auto", "--dangerously-skip-permissions"]
        told = await run(command, tmp_path, **variables)
    assert f"The number is {NUMBER}." in told
    assert (tmp_path / "number.txt").read_text(encoding="utf-8") == NUMBER
