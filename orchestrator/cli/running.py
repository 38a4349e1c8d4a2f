"""Run a command: print its results as text or JSON, and report its errors."""

import asyncio
import errno
import gc
import json
import os
import signal
import sys
import threading
from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import wraps
from importlib import import_module
from typing import Any, Final, NoReturn, ParamSpec, TextIO

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console, RenderableType
from rich.table import Column, Table
from rich.text import Text, TextType

from ...protocols import ConfigError, InvalidRequest, NearfarError, StoreError, UserError
from ...protocols.system import hint_for
from ..util.text import printable

Cell = str | Text
Options = ParamSpec("Options")


class OutputLost(OSError):
    """Standard output takes no more text: its disk is full, or its reader has left. `main` ends the command."""


@contextmanager
def _writing() -> Iterator[None]:
    """Tell a failure to write the output from the other errors of the operating system."""
    try:
        yield
    except OSError as error:
        raise OutputLost(error.errno, error.strerror) from error


class HarmlessConsole(Console):
    """A console on which a printed text cannot move the cursor, hide or forge a question: control characters are written out."""

    def print(self, *objects: Any, **options: Any) -> None:  # noqa: ANN401 - as rich has it
        with _writing():
            super().print(*(map(_harmless, objects) if self.is_terminal else objects), **options)

    def input(self, prompt: TextType = "", **options: Any) -> str:  # noqa: ANN401 - as rich has it
        """Ask for a line. Rich would read the question as markup, although the console prints none."""
        return super().input(prompt, **{"markup": False, "emoji": False, **options})

    def on_broken_pipe(self) -> None:
        """Raise the error again. Rich would end the process here, and send `sys.stdout` to /dev/null, which `keep_stdout` has replaced."""
        raise  # rich calls this where it handles the error

    @contextmanager
    def keep_stdout(self) -> Iterator[None]:
        """Keep standard output for this console: what else is printed in the block, as by the user's tools, goes to standard error."""
        before, self._file = self._file, self.file
        try:
            with redirect_stdout(sys.stderr):
                yield
        finally:
            self._file = before


def _harmless(shown: Any) -> Any:  # noqa: ANN401 - whatever rich prints
    if isinstance(shown, str):
        return printable(shown)
    if isinstance(shown, Text) and (text := printable(shown.plain)) != shown.plain:
        return Text(text, style=shown.style)
    return shown


class NotesConsole(HarmlessConsole):
    """The console of progress and errors. When standard error takes no more text, a command goes on without it: its result counts."""

    def print(self, *objects: Any, **options: Any) -> None:  # noqa: ANN401 - as rich has it
        try:
            super().print(*objects, **options)
        except OutputLost:
            give_up(sys.stderr)


def give_up(stream: TextIO) -> None:
    """Send a standard stream that takes no more text to /dev/null, with what it holds, which would fail again at exit."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, stream.fileno())
    os.close(nowhere)


output: Final = HarmlessConsole(markup=False, emoji=False, highlight=False)
"""Prints answers, on standard output. `[near]` in a text or a table is printed as it is; a style is given next to the text."""
notes: Final = NotesConsole(stderr=True, markup=False, emoji=False, highlight=False)
"""Prints progress, warnings and errors, on standard error, so that standard output can be piped."""


@dataclass(frozen=True, slots=True)
class Note:
    """A line for standard error."""

    shown: RenderableType
    style: str = "dim"


Line = RenderableType | Note


def show(data: object, lines: Iterable[Line], *, as_json: bool) -> None:
    """Print `data` as one line of JSON if `as_json`, else `lines`. With JSON, `lines` is not read: a generator does no work."""
    if as_json:
        print_json(data)
    else:
        print_lines(lines)


def print_lines(lines: Iterable[Line]) -> None:
    """Print texts and tables on standard output and `Note`s on standard error. Long texts are not broken into lines."""
    for line in lines:
        console, shown, style = (notes, line.shown, line.style) if isinstance(line, Note) else (output, line, None)
        console.print(shown, style=style, soft_wrap=isinstance(shown, str | Text))


def print_json(value: object) -> None:
    """Print one line of JSON on standard output and flush it. Print nothing if the caller has closed standard output."""
    if sys.stdout is None:
        return
    with _writing():
        takes_all = output.encoding.replace("-", "") == "utf8"
        output.file.write(json.dumps(value, ensure_ascii=not takes_all) + "\n")
        output.file.flush()


def error_as_json(error: NearfarError) -> dict[str, dict[str, str | None]]:
    """Return an error as scripts read it."""
    return {"error": {"type": type(error).__name__, "message": error.message, "hint": error.hint}}


def warn(text: str) -> None:
    """Print a warning on standard error."""
    notes.print(Text.assemble(("note: ", "bold yellow"), text), soft_wrap=True)


def show_error(error: NearfarError) -> None:
    """Print an error, the notes that were added to it, and its hint, on standard error."""
    # A worker or a server may have written the text, and terminals obey control characters.
    notes.print(Text.assemble(("error: ", "bold red"), printable(error.message)), soft_wrap=True)
    # LangGraph adds notes about its own tasks, which mean nothing to the user of a command.
    for note in (note for note in getattr(error, "__notes__", []) if not note.startswith("During task")):
        notes.print(Text(f"  {note}", style="dim"), soft_wrap=True)
    if error.hint:
        notes.print(Text(f"  {printable(error.hint)}", style="yellow"), soft_wrap=True)


@contextmanager
def spinner(text: str, *, shown: bool) -> Iterator[None]:
    """Show `text` with a spinner on standard error while the block runs, if `shown`."""
    if not shown:
        yield
        return
    with notes.status(Text(text)):
        yield


def right(*titles: str) -> list[Column]:
    """Return columns for figures: aligned to the right."""
    return [Column(title, justify="right") for title in titles]


def table(columns: Iterable[str | Column], rows: Iterable[Sequence[Cell]], *, title: str | None = None) -> Table:
    """Return a table with a heading for each column. Control characters in cells are written out."""
    made = Table(*columns, title=title, box=SIMPLE_HEAD, pad_edge=False, collapse_padding=title is not None)
    for row in rows:
        made.add_row(*map(_cell, row))
    return made


def fact_table(facts: Iterable[tuple[str, Cell]]) -> Table:
    """Return a table of names and values, without headings."""
    made = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    made.add_column(style="dim", no_wrap=True)
    made.add_column(overflow="fold")
    for name, value in facts:
        made.add_row(name, _cell(value))
    return made


def style_cells(cells: Iterable[str], style: str) -> list[Cell]:
    """Return the cells of a row in one style."""
    return [Text(printable(cell), style=style) for cell in cells]


def _cell(cell: Cell) -> Cell:
    return printable(cell) if isinstance(cell, str) else _harmless(cell)


def count_text(count: int, noun: str) -> str:
    """Return a count with its noun: `1 item`, `2 items`."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def size_text(count: int) -> str:
    """Return a number of bytes in the largest decimal unit that fits: `1.2 MB`."""
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= size:
            return f"{count / size:.1f} {unit}"
    return f"{count} bytes"


def moment_text(moment: datetime) -> str:
    """Return a moment in local time, to the second."""
    return moment.astimezone().strftime("%Y-%m-%d %H:%M:%S")


_STEPS: Final = ((60, "second", 1), (3600, "minute", 60), (86400, "hour", 3600), (30 * 86400, "day", 86400))


def ago(moment: datetime, now: datetime | None = None) -> str:
    """Return how long ago a moment was, in one unit; for more than 30 days, and for the future, its local date and time."""
    seconds = ((now or datetime.now(UTC)) - moment).total_seconds()
    for limit, unit, size in _STEPS:
        if 0 <= seconds < limit:
            return f"{count_text(int(seconds // size), unit)} ago"
    return moment.astimezone().strftime("%Y-%m-%d %H:%M")


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


def asynchronous(command: Callable[Options, Coroutine[Any, Any, None]]) -> Callable[Options, None]:
    """Make a command of a coroutine function that has the option `as_json`: each call runs by `execute`."""

    @wraps(command)
    def called(*arguments: Options.args, **options: Options.kwargs) -> None:
        execute(command(*arguments, **options), as_json=bool(options["as_json"]))

    return called


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
    except UnicodeEncodeError as error:  # of an argument: a name in bytes that are no text, which no store takes
        fail(InvalidRequest(f"{error.object!r:.80} is not text in UTF-8", hint="convert it to UTF-8 first"), as_json=as_json)
    except OSError as error:
        reason = error.strerror or str(error)
        problem = reason if error.filename is None else f"{error.filename}: {reason}"
        hint = hint_for(error, "check that the path exists and that you may read and write it")
        if error.errno in (errno.EMFILE, errno.ENFILE):
            hint = "let the process open more files: ulimit -n 1024"
        fail(ConfigError(problem, hint=hint), as_json=as_json)


def end_without_output(error: OSError) -> NoReturn:
    """End the command, whose standard output cannot be written. Say why, unless the reader has left, as `head` does."""
    give_up(sys.stdout)
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
    raise typer.Exit(exit_code(error))


def exit_code(error: NearfarError) -> int:
    """Return the exit code of a command that ends with this error."""
    return EXIT_USAGE if isinstance(error, UserError) else EXIT_FAILED


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
