"""`nearfar serve a2a`: it prints its addresses, keeps tasks over a restart, and says what is wrong."""

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from typer.testing import CliRunner

pytest.importorskip("a2a", reason="A2A is an extra: pip install 'nearfar[a2a]'")
from nearfar.orchestrator.cli import app
from nearfar.protocols.security import Scope
from nearfar.protocols.token_file import add_token

COMMAND = (sys.executable, "-m", "nearfar", "serve", "a2a", "--near", "near", "--port", "0", "--grpc-port", "0", "--json")
MESSAGE = {"messageId": "m1", "role": "ROLE_USER", "parts": [{"text": "Look up the harbour of Vell."}]}


@contextmanager
def started(folder: Path, *arguments: str) -> Iterator[dict[str, Any]]:
    with subprocess.Popen([*COMMAND, *arguments], stdout=subprocess.PIPE, text=True, cwd=folder) as process:
        try:
            assert process.stdout is not None
            yield json.loads(process.stdout.readline())
            process.send_signal(signal.SIGTERM)
            assert process.wait(30) == 0
        finally:
            process.kill()


def test_tasks_are_kept_for_their_caller_over_a_restart(tmp_path: Path) -> None:
    (tmp_path / "nearfar.toml").write_text('[near]\nmodel = "near"\n\n[runs]\nfolder = "runs"\n')
    tokens = tmp_path / "tokens.toml"
    made = {name: add_token(tokens, name, scopes=[Scope.TASKS]).token for name in ("ana", "bob")}
    seen = []
    for _ in range(2):
        with started(tmp_path, "--tokens", str(tokens)) as told:
            assert told["token"] is True
            headers = {"a2a-version": "1.0", "authorization": f"Bearer {made['ana']}"}
            with httpx.Client(base_url=f"{told['url']}/rest", headers=headers, timeout=60) as client:
                seen.append(client.post("/message:send", json={"message": MESSAGE}).json()["task"])
                client.headers["authorization"] = f"Bearer {made['bob']}"
                assert client.get(f"/tasks/{seen[0]['id']}").status_code == 404
    assert seen[0]["status"]["state"] == "TASK_STATE_COMPLETED"
    assert seen[0] == seen[1]


@pytest.mark.parametrize(
    ("arguments", "problem"), [(("--host", "0.0.0.0"), "needs TLS"), (("--certificate", "none.pem"), "belong together")]
)
def test_what_is_wrong_is_told(arguments: tuple[str, ...], problem: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(app, ["serve", "a2a", "--near", "near", "--port", "0", *arguments, "--json"])
    assert result.exit_code == 2, result.output
    assert problem in json.loads(result.stdout)["error"]["message"]
