"""Every command that the documentation shows exists, with the options that it shows."""

import shlex
import tomllib

import pytest
from pages import ROOT, Block, blocks
from typer.testing import CliRunner

from nearfar.device import thin_worker
from nearfar.orchestrator.cli import app

ORDINARY = {"cat", "cd", "chmod", "export", "git", "llama-server", "node", "npm", "openssl", "pkg", "protoc", "python", "source", "umask"}
"""Commands that are not ours."""

COMMANDS = [
    pytest.param(block, line.removeprefix("$ "), id=f"{block.name} {line.removeprefix('$ ')[:40]}")
    for block in blocks("console")
    for line in block.code.replace("\\\n", " ").splitlines()
    if line.startswith("$ ")
]


@pytest.mark.parametrize(("block", "line"), COMMANDS)
def test_command_exists(block: Block, line: str) -> None:
    words = shlex.split(line, comments=True)
    while "=" in words[0]:
        words = words[1:]
    match words:
        case ["nearfar", *arguments]:
            check_nearfar(arguments)
        case ["python", "-m", "nearfar.device.thin_worker", *arguments]:
            thin_worker.parser().parse_args(arguments)
        case ["make", *arguments]:
            targets = (ROOT / "Makefile").read_text(encoding="utf-8")
            for target in (word for word in arguments if "=" not in word):
                assert f"\n{target}:" in targets
        case ["pip", "install", *requirements]:
            check_extras(requirements)
        case [command, *_]:
            assert command in ORDINARY or (ROOT / command).is_file(), block.name


@pytest.mark.parametrize("arguments", [["run", "hello", "--no-such-option"], ["no-such-command"]])
def test_what_does_not_exist_is_noticed(arguments: list[str]) -> None:
    with pytest.raises(AssertionError):
        check_nearfar(arguments)


def check_nearfar(arguments: list[str]) -> None:
    """With `--help` behind them, the options are parsed and nothing is run."""
    result = CliRunner().invoke(app, [*arguments, "--help"])
    assert result.exit_code == 0, result.output


def check_extras(requirements: list[str]) -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    named = [word for word in requirements if "[" in word]
    for requirement in named:
        for extra in requirement.partition("[")[2].rstrip("]").split(","):
            assert extra in extras
