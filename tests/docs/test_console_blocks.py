"""Every command that the documentation shows exists, with the options that it shows."""

import shlex
import tomllib

import click
import pytest
import typer.main
from pages import ROOT, Block, blocks

from nearfar.orchestrator.cli import app

ORDINARY = {"cd", "chmod", "export", "git", "openssl", "python", "source"}
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
        case ["make", *arguments]:
            targets = (ROOT / "Makefile").read_text(encoding="utf-8")
            for target in (word for word in arguments if "=" not in word):
                assert f"\n{target}:" in targets
        case ["pip", "install", *requirements]:
            check_extras(requirements)
        case [command, *_]:
            assert command in ORDINARY or (ROOT / command).is_file(), block.name


def test_a_wrong_option_is_noticed() -> None:
    with pytest.raises(click.UsageError):
        check_nearfar(["run", "hello", "--no-such-option"])


def check_nearfar(arguments: list[str]) -> None:
    """Parse the arguments as the command does, without running it. Raises `click.UsageError` for what it does not know."""
    command: click.Command = typer.main.get_command(app)  # type: ignore[assignment]  # typer's own copy of the class
    context = None
    while hasattr(command, "resolve_command") and arguments[:1] not in ([], ["--help"]):
        context = context or click.Context(command, info_name="nearfar")
        _, command, arguments = command.resolve_command(context, arguments)  # type: ignore[attr-defined]  # seen in the line above
    if "--help" not in arguments:
        command.make_context("nearfar", list(arguments), parent=context)


def check_extras(requirements: list[str]) -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    named = [word for word in requirements if "[" in word]
    for requirement in named:
        for extra in requirement.partition("[")[2].rstrip("]").split(","):
            assert extra in extras
