"""`nearfar serve token`: tokens are made, shown once, replaced and revoked."""

import json
from pathlib import Path
from typing import Any

import pytest
from certificates import Authority
from typer.testing import CliRunner, Result

from nearfar.orchestrator.cli import app
from nearfar.protocols.security import hashed
from nearfar.protocols.token_file import read_tokens


@pytest.fixture(autouse=True)
def own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def token(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["serve", "token", *arguments])


def said(*arguments: str) -> Any:  # noqa: ANN401 - whatever JSON says
    result = token(*arguments, "--json")
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def test_a_token_is_shown_once_and_lets_its_caller_ask_agents_unless_scopes_are_given(tmp_path: Path) -> None:
    made = said("add", "laptop")
    assert made["scopes"] == ["describe", "steps"]
    assert made["expires"] is None
    (record,) = read_tokens(tmp_path / "tokens.toml")
    assert record.digest == hashed(made["token"])
    assert said("add", "phone", "--scope", "attach", "--scope", "memory")["scopes"] == ["attach", "memory"]
    for shown in (token("list").output, token("list", "--json").output):
        assert record.id in shown
        assert "sha256" not in shown
        assert made["token"] not in shown
        assert record.digest.removeprefix("sha256:")[:12] not in shown


def test_the_terminal_gets_the_token_and_nothing_else_on_its_output() -> None:
    result = token("add", "laptop", "--expires", "12h")
    assert len(result.stdout.strip()) == 64
    assert "until" in result.stderr
    assert "laptop" in result.stderr


def test_a_rotation_leaves_two_tokens_and_one_of_them_ends_soon(tmp_path: Path) -> None:
    first = said("add", "laptop", "--expires", "30d")
    second = said("rotate", "laptop", "--overlap", "90m")
    former, later = said("list")["tokens"]
    assert [former["id"], later["id"]] == [first["id"], second["id"]]
    assert former["expires"] < later["expires"]
    assert said("revoke", "laptop", "--id", first["id"])["revoked"] == [first["id"]]
    assert said("rotate", "laptop", "--overlap", "0")["token"] != second["token"]
    assert len(read_tokens(tmp_path / "tokens.toml")) == 1
    assert "valid for another 1d" in token("rotate", "laptop").stderr
    assert len(said("revoke", "laptop")["revoked"]) == 2
    assert said("list") == {"tokens": []}


def test_a_token_that_has_expired_says_so_in_the_list(tmp_path: Path) -> None:
    said("add", "laptop", "--expires", "1s")
    file = tmp_path / "tokens.toml"
    text = file.read_text(encoding="utf-8")
    expires = next(line for line in text.splitlines() if line.startswith("expires"))
    file.write_text(text.replace(expires, "expires = 2020-01-01T00:00:00Z"), encoding="utf-8")
    assert "expired" in token("list").stdout


def test_a_certificate_is_let_in_by_its_fingerprint_or_its_name(tmp_path: Path) -> None:
    certificate, _ = Authority(tmp_path).issue("laptop")
    made = said("add", "laptop", "--certificate", str(certificate), "--scope", "steps")
    assert made["certificate"].startswith("sha256:")
    assert "token" not in made
    assert said("add", "phone", "--certificate", "any")["certificate"] == "any"
    assert "needs no token" in token("add", "tablet", "--certificate", "any").stdout
    assert "certificate" in token("list").stdout


@pytest.mark.parametrize(
    ("arguments", "kind", "hint"),
    [
        (("add", "laptop"), "ConfigError", "rotate"),
        (("add", "phone", "--scope", "everything"), "ConfigError", "describe"),
        (("add", "phone", "--expires", "soon"), "ConfigError", "30d"),
        (("add", "phone", "--expires", "0d"), "ConfigError", "30d"),
        (("add", "a b"), "ConfigError", "letter"),
        (("add", "phone", "--certificate", "missing.pem"), "ConfigError", "PEM"),
        (("rotate", "laptop", "--overlap", "a while"), "ConfigError", "12h"),
        (("rotate", "phone"), "NotFound", "laptop"),
        (("revoke", "phone"), "NotFound", "laptop"),
        (("revoke", "laptop", "--id", "1"), "NotFound", "list"),
        (("list", "--tokens", "missing.toml"), "ConfigError", "nearfar serve token add"),
    ],
)
def test_a_mistake_changes_nothing_and_says_what_to_do(arguments: tuple[str, ...], kind: str, hint: str, tmp_path: Path) -> None:
    said("add", "laptop")
    before = (tmp_path / "tokens.toml").read_bytes()
    result = token(*arguments, "--json")
    assert result.exit_code == 2
    error = json.loads(result.stdout)["error"]
    assert (error["type"], hint in error["hint"]) == (kind, True), error
    assert (tmp_path / "tokens.toml").read_bytes() == before
