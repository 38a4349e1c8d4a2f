"""`nearfar serve http`: it prints how to reach it, drains on SIGTERM, and says what is wrong."""

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import openai
import pytest
from typer.testing import CliRunner

from nearfar.orchestrator.cli import app
from nearfar.protocols.token_file import add_token
from nearfar.protocols.tokens import Scope

COMMAND = (sys.executable, "-m", "nearfar", "serve", "http", "--near", "near", "--address", "127.0.0.1:0")


@contextmanager
def started(*arguments: str) -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen([*COMMAND, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def test_the_server_prints_how_to_point_a_client_at_it_and_ends_cleanly() -> None:
    with started() as process:
        assert process.stdout is not None
        words = process.stdout.readline().split()
        variables = dict(word.split("=", 1) for word in words[1:])
        assert words[0] == "export"
        with openai.OpenAI(base_url=variables["OPENAI_BASE_URL"], api_key=variables["OPENAI_API_KEY"]) as client:
            assert "near" in [model.id for model in client.models.list()]
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0


def test_the_tokens_of_a_file_are_asked_for(tmp_path: Path) -> None:
    tokens = tmp_path / "tokens.toml"
    made = add_token(tokens, "app", scopes=[Scope.TASKS])
    with started("--tokens", str(tokens), "--json") as process:
        assert process.stdout is not None
        told = json.loads(process.stdout.readline())
        assert (told["token"], told["agents"]) == (None, ["near"])
        for key, error in ((made.token, None), ("x" * 64, openai.AuthenticationError)):
            with openai.OpenAI(base_url=f"{told['url']}/v1", api_key=key, max_retries=0) as client:
                if error is None:
                    assert client.models.list().data
                else:
                    with pytest.raises(error):
                        client.models.list()
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 0


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (("--address", "0.0.0.0:0"), "needs TLS"),
        (("--address", "nowhere"), "not an address"),
        (("--tokens", "none.toml"), "cannot be read"),
    ],
)
def test_what_is_wrong_is_told(arguments: tuple[str, ...], problem: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(app, ["serve", "http", "--near", "near", *arguments, "--json"])
    assert result.exit_code == 2, result.output
    assert problem in json.loads(result.stdout)["error"]["message"]
