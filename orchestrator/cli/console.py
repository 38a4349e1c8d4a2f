"""Running a command's coroutine: errors become messages and exit codes, Ctrl-C and other signals close what is open."""

import asyncio
import gc
import json
import os
import signal
import sys
import threading
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any, Final, NoReturn

import typer
from rich.console import Console
from rich.text import Text

from ...protocols import ConfigError, NearfarError, UserError
from ..util.escaping import printable


class HarmlessConsole(Console):
    """At a terminal nothing that somebody else wrote is a command: that could hide or forge what is asked."""

    def print(self, *objects: Any, **options: Any) -> None:  # noqa: ANN401 - as rich has it
        super().print(*(map(_harmless, objects) if self.is_terminal else objects), **options)


def _harmless(shown: Any) -> Any:  # noqa: ANN401 - whatever rich prints
    if isinstance(shown, str):
        return printable(shown)
    if isinstance(shown, Text) and (text := printable(shown.plain)) != shown.plain:
        return Text(text, style=shown.style)
    return shown


output: Final[Console] = HarmlessConsole(markup=False, emoji=False, highlight=False)
"""Where answers go. No text is markup, in tables neither: `[near]` stands there as it is, and styles are given beside the text."""
notes: Final[Console] = HarmlessConsole(stderr=True, markup=False, emoji=False, highlight=False)
"""Where progress, warnings and errors go, so that standard output can be piped."""

EXIT_FAILED = 1
"""The agents or the way to them failed."""
EXIT_USAGE = 2
"""The command, the configuration or a credential is at fault."""
EXIT_INTERRUPTED = 130


def execute(work: Coroutine[Any, Any, None], *, as_json: bool = False) -> None:
    """Run `work` to its end and exit with a fitting code where it fails."""
    collect_garbage()
    with reported(as_json=as_json), _ends_as_by_ctrl_c(signal.SIGTERM, signal.SIGHUP):
        asyncio.run(work)


def collect_garbage() -> None:
    """Begin with it where `main` has left it off while modules load: what they make stays until the process ends."""
    if not gc.isenabled():
        gc.freeze()
        gc.enable()


def load_langgraph() -> None:
    """Load what the first task would load, without collecting garbage meanwhile."""
    name = "nearfar.orchestrator.strategies.graphs"
    if name not in sys.modules:
        gc.disable()
        import_module(name)
    collect_garbage()


@contextmanager
def _ends_as_by_ctrl_c(*numbers: signal.Signals) -> Iterator[None]:
    """Where these signals would kill this process, they end its work in order: a step that is left costs nothing more.

    A signal that somebody takes care of already, as `nohup` does, is left to them.
    """
    is_main = threading.current_thread() is threading.main_thread()
    deadly = [number for number in numbers if is_main and signal.getsignal(number) is signal.SIG_DFL]
    for number in deadly:
        signal.signal(number, _interrupt)
    try:
        yield
    finally:
        for number in deadly:
            signal.signal(number, signal.SIG_DFL)


def _interrupt(*_: object) -> None:
    """End the work as Ctrl-C does, also where Ctrl-C is ignored, as by what a script starts in the background."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        raise KeyboardInterrupt
    signal.raise_signal(signal.SIGINT)


@contextmanager
def reported(*, as_json: bool = False) -> Iterator[None]:
    """Turn what stops the block into a message and an exit code."""
    try:
        yield
    except KeyboardInterrupt:
        notes.print("stopped", style="dim")
        raise typer.Exit(EXIT_INTERRUPTED) from None
    except NearfarError as error:
        fail(error, as_json=as_json)
    except BrokenPipeError:
        # The reader has left, as `head` does: what is still buffered goes nowhere, instead of failing once more at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise typer.Exit(EXIT_FAILED) from None
    except OSError as error:
        fail(ConfigError(str(error), hint="check the path, and who may read and write it"), as_json=as_json)


def fail(error: NearfarError, *, as_json: bool) -> NoReturn:
    """Print the error and exit."""
    if as_json:
        print_json({"error": {"type": type(error).__name__, "message": error.message, "hint": error.hint}})
    else:
        show_error(error)
    raise typer.Exit(EXIT_USAGE if isinstance(error, UserError) else EXIT_FAILED)


def show_error(error: NearfarError) -> None:
    """Print what is wrong, what was noted about it, and what to do."""
    notes.print(Text.assemble(("error: ", "bold red"), error.message), soft_wrap=True)
    # LangGraph adds notes about its own tasks, which mean nothing to the user of a command.
    for note in (note for note in getattr(error, "__notes__", []) if not note.startswith("During task")):
        notes.print(Text(f"  {note}", style="dim"), soft_wrap=True)
    if error.hint:
        notes.print(Text(f"  {error.hint}", style="yellow"), soft_wrap=True)


def fail_usage(message: str) -> NoReturn:
    """Print a mistake on the command line as JSON and exit."""
    print_json({"error": {"type": ConfigError.__name__, "message": message, "hint": "--help lists the commands and their options"}})
    raise SystemExit(EXIT_USAGE)


def warn(text: str) -> None:
    """Print a warning."""
    notes.print(Text.assemble(("note: ", "bold yellow"), text), soft_wrap=True)


def print_json(value: object) -> None:
    """Print one line of JSON on standard output, at once."""
    if sys.stdout is None:  # the caller closed it
        return
    sys.stdout.write(json.dumps(value, ensure_ascii=False) + "\n")
    sys.stdout.flush()


def agreed(question: str, *, as_json: bool) -> bool:
    """What the user answers. Raises `ConfigError` where nobody is there to answer, as in a script."""
    if as_json or not sys.stdin.isatty():
        raise ConfigError("this needs a yes, and nobody can be asked", hint="say --yes, or look first with --dry-run")
    return typer.confirm(question, err=True)


@contextmanager
def working(what: str, *, shown: bool) -> Iterator[None]:
    """Show that something is under way whose length nobody knows."""
    if not shown:
        yield
        return
    with notes.status(Text(what)):
        yield
