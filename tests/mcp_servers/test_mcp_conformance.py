"""The protocol's own conformance suite, against Nearfar as a server and as a client, in both eras."""

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from node_environment import node_environment

pytest.importorskip("mcp", reason="MCP is an extra: pip install 'nearfar[mcp]'")
HERE = Path(__file__).parent
SECONDS = 110
NEW, OLD = "2026-07-28", "2025-11-25"
OWN = [
    (NEW, "tools-list"),
    (NEW, "resources-list"),
    (NEW, "prompts-list"),
    (NEW, "caching"),
    (NEW, "dns-rebinding-protection"),
    (NEW, "sep-2164-resource-not-found"),
    (NEW, "http-header-validation"),
    (OLD, "server-initialize"),
    (OLD, "server-session-lifecycle"),
    (OLD, "ping"),
    (OLD, "tools-list"),
    (OLD, "resources-list"),
    (OLD, "prompts-list"),
    (OLD, "dns-rebinding-protection"),
]
"""Scenarios that need no tools of the suite's own."""
AS_CLIENT = [
    (NEW, "tools_call"),
    (NEW, "request-metadata"),
    (NEW, "sep-2322-client-request-state"),
    (NEW, "http-standard-headers"),
    (NEW, "http-custom-headers"),
    (NEW, "http-invalid-tool-headers"),
    (NEW, "json-schema-ref-no-deref"),
    (NEW, "json-schema-2020-12-preservation"),
    (OLD, "initialize"),
    (OLD, "tools_call"),
    (OLD, "elicitation-sep1034-client-defaults"),
]
"""All scenarios but those about OAuth, which the client does not speak, and `sse-retry`, which judges by the clock of a busy machine."""
REQUIRED = 37


class Suite:
    """The suite, as a program of Node.js."""

    def __init__(self, folder: Path) -> None:
        environment = node_environment()
        self._program = environment / "node_modules" / "@modelcontextprotocol" / "conformance" / "dist" / "index.js"
        if not self._program.exists():
            pytest.skip("the conformance suite of MCP is not installed: run `make node`, which says why where it fails")
        self._node = environment / "bin" / "node"
        self._folder = folder

    def run(self, *arguments: str) -> str:
        """Run the suite and return its output. Fails where it fails."""
        command = [str(self._node), str(self._program), *arguments]
        ended = subprocess.run(command, cwd=self._folder, capture_output=True, text=True, timeout=SECONDS, check=False)
        assert ended.returncode == 0, ended.stdout[-6000:] + ended.stderr[-2000:]
        return ended.stdout + ended.stderr


@pytest.fixture
def suite(tmp_path: Path) -> Suite:
    return Suite(tmp_path)


@contextmanager
def served(*command: str, cwd: Path) -> Iterator[str]:
    """Run a server, and yield the URL in its first line."""
    process = subprocess.Popen([sys.executable, *command], cwd=cwd, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    with process:
        assert process.stdout is not None
        line = process.stdout.readline()
        yield json.loads(line)["url"] if line.startswith("{") else line.strip()
        process.terminate()


def test_our_server_passes_every_scenario_that_the_newest_version_requires(suite: Suite) -> None:
    with served(str(HERE / "conformance_fixtures.py"), cwd=HERE) as url:
        output = suite.run("server", "--url", url, "--requirements", NEW)
    passed = re.findall(r"^✓ ([a-z0-9-]+): \d+ passed, 0 failed", output.split("=== SUMMARY ===")[1], re.MULTILINE)
    required = suite.run("list", "--requirements", NEW).split("Server scenarios")[1].split("\n\n")[0]
    names = re.findall(r"^\s+- ([a-z0-9-]+)", required, re.MULTILINE)
    assert (len(names), set(names) - set(passed)) == (REQUIRED, set())


@pytest.fixture(scope="module")
def own_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of `nearfar serve mcp`, with runs and a memory."""
    folder = tmp_path_factory.mktemp("served")
    (folder / "nearfar.toml").write_text("[near]\nmodel = 'near'\n[runs]\nfolder = 'runs'\n[memory]\npath = 'memory.db'\n")
    command = ("-c", "from nearfar.orchestrator.cli import main; main()", "serve", "mcp", "--address", "127.0.0.1:0", "--json")
    with served(*command, cwd=folder) as url:
        yield url


@pytest.mark.parametrize(("version", "scenario"), OWN)
def test_the_command_passes_all_scenarios_that_need_no_tools(version: str, scenario: str, suite: Suite, own_server: str) -> None:
    assert "0 failed" in suite.run("server", "--url", own_server, "--spec-version", version, "--scenario", scenario)


@pytest.mark.parametrize(("version", "scenario"), AS_CLIENT)
def test_our_client_passes_all_scenarios_without_oauth(version: str, scenario: str, suite: Suite) -> None:
    command = f"{sys.executable} {HERE / 'conformance_client.py'}"
    assert "0 failed" in suite.run("client", "--command", command, "--spec-version", version, "--scenario", scenario)
