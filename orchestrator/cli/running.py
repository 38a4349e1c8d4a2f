"""Run a command: errors become messages and exit codes; Ctrl-C and signals that end the process close what is open first."""

import asyncio
import errno
import gc
import os
import signal
import sys
import threading
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any, Final, NoReturn

import typer

from ...protocols import ConfigError, InvalidRequest, NearfarError, StoreError, UserError
from .printing import OutputLost, error_as_json, notes, output, print_json, show_error

EXIT_FAILED: Final = 1
"""Exit code if an agent failed or could not be reached."""
EXIT_USAGE: Final = 2
"""Exit code for a mistake in the command, the configuration or a credential."""
EXIT_INTERRUPTED: Final = 130
_ENDING: Final = [getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)]  # Windows has no second one


def execute(work: Coroutine[Any, Any, None], *, as_json: bool = False) -> None:
    """Run `work` to its end; if it fails, print the error and exit with its code."""
    collect_garbage()
    with report_errors(as_json=as_json), _end_like_ctrl_c(), output.keep_stdout():
        asyncio.run(work)


def collect_garbage() -> None:
    """Turn garbage collection on again if `main` has turned it off, leaving out all objects of the modules that are loaded."""
    if not gc.isenabled():
        gc.freeze()
        gc.enable()


def load_langgraph() -> None:
    """Load the modules that the first task needs, with garbage collection off meanwhile: that is faster."""
    name = "nearfar.orchestrator.strategies.graphs"
    if name not in sys.modules:
        gc.disable()
        import_module(name)
    collect_garbage()


@contextmanager
def _end_like_ctrl_c() -> Iterator[None]:
    """Let SIGTERM and SIGHUP end the block as Ctrl-C does, if they would kill the process: an abandoned step then costs nothing more.

    A signal that has a handler already, or is ignored as by `nohup`, is not touched.
    """
    is_main = threading.current_thread() is threading.main_thread()
    deadly = [number for number in _ENDING if is_main and signal.getsignal(number) is signal.SIG_DFL]
    for number in deadly:
        signal.signal(number, _interrupt)
    try:
        yield
    finally:
        for number in deadly:
            signal.signal(number, signal.SIG_DFL)


def _interrupt(*_: object) -> None:
    """End the work as Ctrl-C does. If Ctrl-C is ignored, as in a script's background job, raise `KeyboardInterrupt` directly."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        raise KeyboardInterrupt
    signal.raise_signal(signal.SIGINT)


@contextmanager
def report_errors(*, as_json: bool = False) -> Iterator[None]:
    """Turn an error or interruption of the block into a message and an exit code."""
    try:
        yield
    except KeyboardInterrupt:
        notes.print("stopped", style="dim")
        raise typer.Exit(EXIT_INTERRUPTED) from None
    except NearfarError as error:
        fail(error, as_json=as_json)
    except OutputLost:
        raise
    except OSError as error:
        reason = error.strerror or str(error)
        problem = reason if error.filename is None else f"{error.filename}: {reason}"
        fail(ConfigError(problem, hint="check that the path exists and that you may read and write it"), as_json=as_json)


def end_without_output(error: OSError) -> NoReturn:
    """End the command, whose standard output cannot be written. Say why, unless the reader has left, as `head` does."""
    # The rest of the buffer goes to /dev/null instead of failing again at exit.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    if error.errno != errno.EPIPE:
        hint = "free some space, or send the output elsewhere"
        show_error(StoreError(f"the output cannot be written: {error.strerror}", hint=hint))
    raise SystemExit(EXIT_FAILED) from None


def fail(error: NearfarError, *, as_json: bool) -> NoReturn:
    """Print the error and exit."""
    if as_json:
        print_json(error_as_json(error))
    else:
        show_error(error)
    raise typer.Exit(EXIT_USAGE if isinstance(error, UserError) else EXIT_FAILED)


def fail_usage(message: str) -> NoReturn:
    """Print a mistake on the command line as JSON and exit."""
    print_json({"error": {"type": ConfigError.__name__, "message": message, "hint": "--help lists the commands and their options"}})
    raise SystemExit(EXIT_USAGE)


def confirm(question: str, *, as_json: bool) -> bool:
    """Ask a yes-or-no question. Raise `ConfigError` with `--json` and in a script, where it cannot be answered."""
    if as_json or not sys.stdin.isatty():
        raise ConfigError("this command asks before it goes on, and there is no terminal to ask at", hint="add --yes, or --dry-run to look")
    return typer.confirm(question, err=True)


def read_prompt(prompt: str, *, as_json: bool) -> str:
    """Return the task; `-` reads it from standard input. Text that is not UTF-8 is reported as an error."""
    with report_errors(as_json=as_json):
        try:
            text = sys.stdin.read() if prompt == "-" else prompt
            text.encode()
        except UnicodeError as error:
            raise InvalidRequest("the task is not text in UTF-8", hint="convert it to UTF-8 first") from error
        return text
