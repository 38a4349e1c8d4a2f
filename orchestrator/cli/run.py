"""`nearfar run` and `nearfar chat`."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

from rich.text import Text

from ...protocols import ConfigError, Message, NearfarError
from ..compose.config import Config
from ..hybrid.arguments import TaskOptions
from ..hybrid.hybrid import Hybrid
from ..task.events import (
    AgentText,
    AttemptEnded,
    AttemptStarted,
    SubtaskEnded,
    SubtasksPlanned,
    SupervisorSpoke,
    TaskEvent,
    TaskFinished,
    ToolFinished,
    ToolStarted,
)
from ..task.results import Result
from .approving import terminal_approver
from .console import execute, load_langgraph, notes, output, print_json, reported, show_error
from .options import Files, Selection
from .selection import chosen_config, open_hybrid, warn_outside_world

_SHOWN_RESULT = 200
_ENDINGS = ("exit", "quit", "/exit", "/quit", ":q", "exit()", "quit()")
"""Turns that end a chat: they are meant for the program, and would cost money as prompts."""


def run_task(prompt: str, selection: Selection, files: Files, known: TaskOptions, *, as_json: bool) -> None:
    """Run one task; the answer goes to standard output, what happens on the way to standard error."""

    async def work() -> None:
        options: TaskOptions = {**known, **selection.stated, "output_schema": _read_schema(files.schema) if files.schema else None}
        if files.context is not None:
            options["context"] = _read_context(files.context)
        config = chosen_config(selection)
        warn_outside_world(prompt, config)
        if config.runs is not None:
            options["idempotency_key"] = uuid4().hex
        load_langgraph()
        async with open_hybrid(selection, config, None if as_json else terminal_approver()) as hybrid, _resumable(options):
            if as_json:
                result = await hybrid.run(prompt, **options)
                print_json(result.model_dump(mode="json"))
            else:
                result = await _show(hybrid, prompt, options)
                _show_memory(result)
                notes.print(summary(result), style="dim", soft_wrap=True)

    execute(work(), as_json=as_json)


@asynccontextmanager
async def _resumable(options: TaskOptions) -> AsyncIterator[None]:
    """Say how to go on with what is interrupted, where it is a durable run."""
    try:
        yield
    except asyncio.CancelledError:
        run = options.get("idempotency_key")
        if run is not None:
            notes.print(f"go on with it: nearfar runs resume {run}", soft_wrap=True)
        raise


def chat_with(selection: Selection) -> None:
    """Read turns from the terminal until end of input; a failed turn is reported and the conversation goes on.

    Ctrl-C stops the turn under way; at the prompt it ends the chat. The event loop runs only while a turn does, since a thread that
    waits for input could not be stopped.
    """
    with reported(), asyncio.Runner() as runner:
        config = chosen_config(selection)
        hybrid = open_hybrid(selection, config, terminal_approver())
        try:
            load_langgraph()
            notes.print("end with exit or Ctrl-D", style="dim")
            _converse(runner, hybrid, config, {"session": uuid4().hex, **selection.stated})
        finally:
            runner.run(hybrid.aclose())


def _converse(runner: asyncio.Runner, hybrid: Hybrid, config: Config, options: TaskOptions) -> None:
    history: list[Message] = []
    while (said := _read_turn()) is not None:
        if not said.strip():
            continue
        if said.strip().lower() in _ENDINGS:
            return
        warn_outside_world(said, config)
        try:
            result = runner.run(_show(hybrid, [*history, Message.user(said)], options))
        except NearfarError as error:
            show_error(error)
            continue
        except KeyboardInterrupt:
            notes.print("\nstopped; Ctrl-D ends the chat", style="dim")
            continue
        _show_memory(result)
        notes.print(summary(result), style="dim", soft_wrap=True)
        history += [Message.user(said), Message.assistant(result.text)]


def _read_turn() -> str | None:
    """What the user typed; None at the end of input."""
    try:
        return output.input("> ")
    except EOFError:
        notes.print()
        return None


async def _show(hybrid: Hybrid, prompt: str | list[Message], options: TaskOptions) -> Result:
    """Run a task and print it as it happens; the answer goes to standard output, once."""
    printer = _Printer()
    try:
        async with aclosing(hybrid.stream(prompt, **options)) as events:
            async for event in events:
                printer.show(event)
                if isinstance(event, TaskFinished):
                    printer.finish(event.result)
                    return event.result
    except NearfarError as error:
        printer.fail(error)
        raise
    raise AssertionError("a stream of events ends with TaskFinished or an error")


class _Printer:
    """Prints what happens in a task to standard error.

    Text is shown as it streams where somebody reads along. An answer that stands on their terminal by then is not printed a second time.
    """

    def __init__(self) -> None:
        self._streamed = ""
        """What the step under way has said."""
        self._failed: list[str] = []
        """Attempts that are over. The last one is printed when something follows it: else the error tells the same."""
        self._shown = 0
        """How many of them are printed."""

    def show(self, event: TaskEvent) -> None:
        """Print one event."""
        if isinstance(event, AgentText):
            self._streamed += event.text
            if notes.is_terminal:
                notes.print(Text(event.text, style="dim"), end="", soft_wrap=True)
            return
        if isinstance(event, (AttemptStarted, ToolStarted)):
            self._streamed = ""
        self._show_failed()
        if isinstance(event, AttemptEnded) and event.attempt.outcome != "accepted":
            self._failed.append(f"{event.attempt.agent} {event.attempt.outcome}: {event.attempt.reason}")
        else:
            _show_event(event)

    def fail(self, error: NearfarError) -> None:
        """Print what the error itself does not tell, and take from its notes what is printed already."""
        if self._failed and not self._failed[-1].endswith(f"{error}") and error.message not in self._failed[-1]:
            self._show_failed()
        told = {f"before that, {line}" for line in self._failed[: self._shown]}
        error.__notes__ = [note for note in dict.fromkeys(getattr(error, "__notes__", ())) if note not in told]

    def _show_failed(self) -> None:
        for line in self._failed[self._shown :]:
            notes.print(f"\n{line}", style="yellow", soft_wrap=True)
        self._shown = len(self._failed)

    def finish(self, result: Result) -> None:
        """Print the answer, unless it stands on the same terminal already."""
        is_read = notes.is_terminal and output.is_terminal and self._streamed.strip() == result.text.strip() != ""
        if not is_read:
            output.print(Text(result.text), soft_wrap=True)


def _show_event(event: TaskEvent) -> None:
    match event:
        case AttemptStarted():
            notes.print(f"{event.agent} ({event.model}):", style="dim")
        case ToolStarted():
            arguments = json.dumps(event.call.arguments, ensure_ascii=False)
            notes.print(Text.assemble((f"  {event.call.name}", "cyan"), (arguments, "dim")), soft_wrap=True)
        case ToolFinished():
            style = "red" if event.result.is_error else "dim"
            notes.print(f"  -> {event.result.content[:_SHOWN_RESULT]}", style=style, soft_wrap=True)
        case SupervisorSpoke():
            notes.print(Text(f"\n{_supervision(event)}", style="dim italic"), soft_wrap=True)
        case SubtasksPlanned():
            for subtask in event.subtasks:
                after = f" (after {', '.join(subtask.needs)})" if subtask.needs else ""
                notes.print(Text(f"{subtask.id}: {subtask.task}{after}", style="dim italic"), soft_wrap=True)
        case SubtaskEnded():
            style = "dim" if event.outcome == "done" else "yellow"
            notes.print(Text(f"\n{event.id} {event.outcome}: {event.answer[:_SHOWN_RESULT]}", style=style), soft_wrap=True)
        case AttemptEnded():
            notes.print()


def _show_memory(result: Result) -> None:
    """What was recalled for the task, and what that made of it."""
    for reason in result.reasons:
        if reason.startswith(("memory: ", "private: ")):
            notes.print(Text(reason, style="dim"), soft_wrap=True)


def _supervision(event: SupervisorSpoke) -> str:
    """A supervisor's words, under what they are."""
    if event.verdict is None:
        return f"{event.agent} plans:\n{event.text}"
    shadow = ", in shadow" if event.shadow else ""
    return f"{event.agent} checks ({event.trigger}{shadow}): {event.verdict}\n{event.text}"


def summary(result: Result) -> str:
    """One line: who answered, how sure, at what cost."""
    where = "on this device" if result.served_on_device else "in the cloud"
    confidence = "" if result.confidence is None else f", confidence {result.confidence:.2f}"
    fallback = " after a fallback" if result.was_fallback else ""
    interventions = f", {result.interventions} interventions" if result.interventions else ""
    dollars = "price unknown" if result.dollars is None else f"${result.dollars:.6f}"
    tokens = f"{result.near.usage.total_tokens} near / {result.far.usage.total_tokens} far tokens"
    hits = sum(call.saved is not None for call in result.calls)
    cached = f", {hits} of {len(result.calls)} calls from the cache" if hits else ""
    cut = ", as far as its budget went" if result.budget_exceeded is not None else ""
    energy = result.energy
    joules = f", {energy.joules:.3g} J {energy.source}" if energy.joules else ""
    return f"{result.model} {where}{fallback}{cut}{confidence}{interventions}; {tokens}, {dollars}{joules}{cached}, {result.seconds:.2f} s"


def _read_context(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path} is not text in UTF-8: {error.reason}", hint="convert it first") from error


def _read_schema(path: Path) -> dict[str, Any]:
    try:
        schema = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path} is not a JSON file: {error}", hint="--schema names a JSON Schema file") from error
    if not isinstance(schema, dict):
        raise ConfigError(f"{path} holds no JSON object", hint="--schema names a JSON Schema file")
    return schema
