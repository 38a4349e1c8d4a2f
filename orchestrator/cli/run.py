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
from ..config import Config
from ..events import (
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
from ..hybrid import Hybrid
from ..results import Result
from ..task_options import TaskOptions
from .approving import terminal_approver
from .console import execute, notes, output, print_json, reported, show_error
from .options import Files, Selection
from .selection import chosen_config, open_hybrid, warn_outside_world

_SHOWN_RESULT = 200


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
            notes.print("end with Ctrl-D", style="dim")
            _converse(runner, hybrid, config, {"session": uuid4().hex, **selection.stated})
        finally:
            runner.run(hybrid.aclose())


def _converse(runner: asyncio.Runner, hybrid: Hybrid, config: Config, options: TaskOptions) -> None:
    history: list[Message] = []
    while (said := _read_turn()) is not None:
        if not said.strip():
            continue
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
    """Run a task and print it as it happens: text as it streams, except that a draft which may still be rejected stays dim."""
    async with aclosing(hybrid.stream(prompt, **options)) as events:
        async for event in events:
            _show_event(event)
            if isinstance(event, TaskFinished):
                output.print(Text(event.result.text), soft_wrap=True)
                return event.result
    raise AssertionError("a stream of events ends with TaskFinished or an error")


def _show_event(event: TaskEvent) -> None:
    match event:
        case AttemptStarted():
            notes.print(f"{event.agent} ({event.model}):", style="dim")
        case AgentText():
            notes.print(Text(event.text, style="dim"), end="", soft_wrap=True)
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
        case AttemptEnded() if event.attempt.outcome != "accepted":
            notes.print(f"\n{event.attempt.agent} {event.attempt.outcome}: {event.attempt.reason}", style="yellow", soft_wrap=True)
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
