"""The `nearfar` command. Only typer is imported here: the module of a command is loaded when the command is used."""

import gc
import json
import os
import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from inspect import Parameter, Signature
from io import TextIOWrapper
from pathlib import Path
from typing import Annotated, Any, Final

import typer
from typer.core import HAS_RICH, TyperGroup
from typer.main import get_command, get_group

COMMANDS: Final = {
    "init": "Find the models and keys of this machine, and write a first nearfar.toml.",
    "run": "Run one task and print the answer, the model that gave it, and what it cost.",
    "chat": "Talk to the agents, turn by turn.",
    "demo": "Show one task step by step, then compare the device, the cloud and a cascade, offline.",
    "sweep": "Compare strategies on worlds of tasks, with error bars, and report the score and cost of each.",
    "doctor": "Show what is installed, what this machine has, what works, and how to fix the rest.",
}
"""Commands of one word, with the first line of their help."""
GROUPS: Final = {
    "config": "Show the configuration that is in force, and where each value comes from.",
    "keys": "Keep the keys of providers in the keyring of this machine, and see which are set.",
    "runs": "Look at durable runs, resume them, end them.",
    "trace": "Show what happened in a run, on which side, why, and what it cost.",
    "memory": "See, correct, move, synchronise and erase what this device remembers.",
    "cache": "Show what the cache of answers and plans holds, saves and gets wrong.",
    "budget": "Show what was spent, what is reserved for calls under way, and what may be spent.",
    "privacy": "Show what left this device, and what was held back.",
    "mcp": "See the configured MCP servers, and approve the tools that agents may call.",
    "models": "List, fetch and check the models of this device, and see which fit.",
    "prices": "Show and import the prices of providers' models.",
    "policy": "Check and explain a policy, and train, calibrate and simulate its router on recorded outcomes.",
    "serve": "Serve agents to other processes and machines over gRPC.",
    "worker": "Lend this device's models to another machine, or let other devices lend theirs to this one.",
}
"""Groups of commands, with their help."""
_SHARED_MODULES: Final = {
    "chat": "run",
    "demo": "sweep",
    "init": "config",
    "keys": "config",
    "prices": "budget",
    "privacy": "runs",
    "trace": "runs",
}
"""Modules of the commands and groups that share one with another; the others have one with their name."""


_MOVED: Final = {"router": "policy train", "auto": "policy choose"}
"""Former groups of commands, with what replaces them."""


class LazyGroup(TyperGroup):
    """A group that loads a command when it is used. With `--json`, a mistake on the command line is reported as JSON, too."""

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:  # noqa: ANN401 - typer's types are private
        if args and args[0] in _MOVED:
            ctx.fail(f"No such command {args[0]!r}. Its commands are in `nearfar policy`, such as `nearfar {_MOVED[args[0]]}`.")
        name, stub, rest = super().resolve_command(ctx, args)
        if name is None:
            return name, stub, rest
        if ctx.resilient_parsing:  # a shell completes what is typed: it waits for the answer, and needs names alone
            known = _completed(json.loads(COMPLETIONS.read_text(encoding="utf-8"))[name])
            return name, get_command(known), rest
        command = get_command(load(name)) if name in COMMANDS else get_group(load(name))
        command.name, command.help = name, command.help or COMMANDS.get(name) or GROUPS[name]  # `python -OO` drops docstrings
        _escape_help(command)
        return name, command, rest

    def main(self, args: Sequence[str] | None = None, *, standalone_mode: bool = True, **extra: Any) -> Any:  # type: ignore[override]  # noqa: ANN401 - fewer parameters by position than the base class
        arguments = list(sys.argv[1:] if args is None else args)
        if "--json" not in arguments or not standalone_mode:
            return super().main(arguments, standalone_mode=standalone_mode, **extra)
        try:
            code = super().main(arguments, standalone_mode=False, **extra)
        except Exception as error:
            describe = getattr(error, "format_message", None)  # typer's errors for such a mistake have no public base class
            if describe is None:
                raise
            from .running import fail_usage

            fail_usage(describe())
        raise SystemExit(code or 0)


def _escape_help(command: Any) -> None:  # noqa: ANN401 - typer's types are private
    """Escape the help of a command and all below it, which typer reads as rich's markup: `[runs]` would be left out."""
    if not HAS_RICH:
        return
    from rich.markup import escape

    for each in (command, *command.params):
        each.help = each.help and escape(each.help)
    for below in getattr(command, "commands", {}).values():
        _escape_help(below)


COMPLETIONS: Final = Path(__file__).with_name("completions.json")
"""The options and commands of each command, written by scripts/reference.py: loading a command takes longer than a shell may wait."""


def _completed(entry: dict[str, Any]) -> typer.Typer:
    """Return a command, or a group of commands, that has the names and the help of the real one and does nothing."""
    made = typer.Typer(add_completion=False, help=entry["help"])
    if "commands" not in entry:
        made.command(help=entry["help"])(_taking(entry["options"]))
        return made
    made.callback()(_taking(entry["options"]))
    for inner, below in entry["commands"].items():
        if "commands" in below:
            made.add_typer(_completed(below), name=inner, help=below["help"])
        else:
            made.command(inner, help=below["help"])(_taking(below["options"]))
    return made


def _taking(options: list[dict[str, Any]]) -> Callable[..., None]:
    """Return a function with these options, from which typer makes a command."""

    def function(**_: object) -> None: ...

    parameters = []
    for place, option in enumerate(options):
        info = typer.Option(*option["names"], help=option["help"])
        kind = Annotated[bool | None, info] if option["flag"] else Annotated[str | None, info]
        parameters.append(Parameter(f"option_{place}", Parameter.KEYWORD_ONLY, default=None, annotation=kind))
    function.__signature__ = Signature(parameters)  # type: ignore[attr-defined]  # `inspect.signature` reads it
    function.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return function


def load(name: str) -> typer.Typer:
    """Load the module of a command or group. Return the group, or for a command a group with it alone."""
    module = import_module(f".{_SHARED_MODULES.get(name, name)}", __package__)
    if name in GROUPS:
        group: typer.Typer = getattr(module, f"{name}_app" if name in _SHARED_MODULES else "app")
        return group
    single = typer.Typer(add_completion=False)
    single.command()(getattr(module, name))
    return single


app = typer.Typer(
    name="nearfar",
    cls=LazyGroup,
    help="Agents that run on this device and ask the cloud only when it pays.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
for _name, _help in {**COMMANDS, **GROUPS}.items():
    app.add_typer(typer.Typer(help=_help), name=_name)


def _print_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        typer.echo(f"nearfar {version('nearfar')}")
        raise typer.Exit


@app.callback()
def nearfar(
    version: Annotated[bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")] = False,
) -> None:
    """Agents that run on this device and ask the cloud only when it pays."""


def _prepare_streams() -> None:
    """Open /dev/null for each standard stream that the caller, such as a service manager, has closed. Let them take all texts."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115  # open as long as the process
    if isinstance(sys.stdin, TextIOWrapper):
        # Bytes that are no text become halves of surrogate pairs, which all readers refuse: else reading itself fails in most languages.
        sys.stdin.reconfigure(errors="surrogateescape")
    if isinstance(sys.stdout, TextIOWrapper) and sys.stdout.errors == "strict":
        sys.stdout.reconfigure(errors="backslashreplace")  # a name that is no text, or a letter that the terminal lacks, is written out


def main() -> None:
    """Run the `nearfar` command."""
    _prepare_streams()
    gc.disable()  # until `collect_garbage`
    try:
        app()
    except OSError as error:  # commands report their own: this one is about standard output
        from .running import end_without_output

        end_without_output(error)
