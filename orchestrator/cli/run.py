"""`nearfar run` and `nearfar chat`: run one task, or talk turn by turn, and print what happens as it happens."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any
from uuid import uuid4

import typer
from rich.text import Text

from ...protocols import ConfigError, Message, NearfarError
from ..compose.config import Config
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
from . import options
from .printing import notes, output, print_json, show_error
from .running import execute, load_langgraph, read_prompt, report_errors
from .selection import chosen_config, open_hybrid, terminal_approver, warn_outside_world

if TYPE_CHECKING:
    from ..hybrid.arguments import TaskOptions
    from ..hybrid.hybrid import Hybrid

_SHOWN_RESULT = 200
"""Characters of a tool's result that are shown."""
_ENDINGS = ("exit", "quit", "/exit", "/quit", ":q", "exit()", "quit()")
"""Turns that end a chat. As prompts they would only cost money."""


def run(
    prompt: options.Prompt,
    config: options.Config = None,
    near: options.Near = None,
    far: options.Far = None,
    strategy: options.StrategyName = None,
    mode: options.ModeName = None,
    public: options.Public = False,
    tools: options.Tools = None,
    context: Annotated[Path | None, typer.Option(help="Text file that the task is about. `minions` keeps it on this device.")] = None,
    schema: Annotated[Path | None, typer.Option(help="JSON Schema file. The answer must be valid against it.")] = None,
    timeout: Annotated[float | None, typer.Option(min=0.001, help="Seconds for the whole task.")] = None,
    task_class: options.TaskClass = "",
    tag: options.Tags = None,
    as_json: options.AsJson = False,
) -> None:
    """Run one task and print the answer, the model that gave it, and what it cost.

    The answer goes to standard output; the steps on the way to it go to standard error.
    """
    text = read_prompt(prompt, as_json=as_json)
    selection = options.AgentChoice(config, near, far, strategy, mode, public, tools)

    async def work() -> None:
        given: TaskOptions = {"timeout": timeout, "task_class": task_class, "tags": tag or (), **selection.stated}
        given["output"] = _read_schema(schema) if schema else None
        if context is not None:
            given["context"] = _read_context(context)
        chosen = chosen_config(selection)
        warn_outside_world(text, chosen)
        if chosen.runs is not None:
            given["idempotency_key"] = uuid4().hex
        load_langgraph()
        async with open_hybrid(selection, chosen, None if as_json else terminal_approver()) as hybrid, _offer_resume(given):
            if as_json:
                print_json((await hybrid.run(text, **given)).model_dump(mode="json"))
            else:
                show_end(await show_task(hybrid, text, given))

    execute(work(), as_json=as_json)


def chat(
    config: options.Config = None,
    near: options.Near = None,
    far: options.Far = None,
    strategy: options.StrategyName = None,
    mode: options.ModeName = None,
    public: options.Public = False,
    tools: options.Tools = None,
) -> None:
    """Talk to the agents, turn by turn.

    Ctrl-C stops the current turn; at the prompt it ends the chat. If a turn fails, the chat goes on.
    """
    selection = options.AgentChoice(config, near, far, strategy, mode, public, tools)
    # The event loop runs only during a turn: a thread that waits for input could not be stopped.
    with report_errors(), asyncio.Runner() as runner:
        chosen = chosen_config(selection)
        hybrid = open_hybrid(selection, chosen, terminal_approver())
        try:
            load_langgraph()
            notes.print("end with exit or Ctrl-D", style="dim")
            _converse(runner, hybrid, chosen, {"session": uuid4().hex, **selection.stated})
        finally:
            runner.run(hybrid.aclose())


@asynccontextmanager
async def _offer_resume(given: "TaskOptions") -> AsyncIterator[None]:
    """If the block is cancelled and its run is durable, print the command that resumes the run."""
    try:
        yield
    except asyncio.CancelledError:
        key = given.get("idempotency_key")
        if key is not None:
            notes.print(f"to resume this run: nearfar runs resume {key}", soft_wrap=True)
        raise


def _read_context(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path} is not text in UTF-8: {error.reason}", hint="convert it to UTF-8 first") from error


def _read_schema(path: Path) -> dict[str, Any]:
    try:
        schema = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path} is not a JSON file: {error}", hint="--schema names a JSON Schema file") from error
    if not isinstance(schema, dict):
        raise ConfigError(f"{path} holds no JSON object", hint="--schema names a JSON Schema file")
    return schema


def _converse(runner: asyncio.Runner, hybrid: "Hybrid", config: Config, given: "TaskOptions") -> None:
    history: list[Message] = []
    while (said := _read_turn()) is not None:
        if not said.strip():
            continue
        if said.strip().lower() in _ENDINGS:
            return
        warn_outside_world(said, config)
        try:
            result = runner.run(show_task(hybrid, [*history, Message.user(said)], given))
        except NearfarError as error:
            show_error(error)
            continue
        except KeyboardInterrupt:
            notes.print("\nstopped; Ctrl-D ends the chat", style="dim")
            continue
        show_end(result)
        history += [Message.user(said), Message.assistant(result.text)]


def _read_turn() -> str | None:
    """Return the line that the user types; None at the end of input."""
    try:
        return output.input("> ")
    except EOFError:
        notes.print()
        return None


async def show_task(hybrid: "Hybrid", prompt: str | list[Message], given: "TaskOptions") -> Result:
    """Run a task and print it as it happens; print the answer on standard output, once."""
    printer = _Printer()
    try:
        async with aclosing(hybrid.stream(prompt, **given)) as events:
            async for event in events:
                printer.show(event)
                if isinstance(event, TaskFinished):
                    printer.finish(event.result)
                    return event.result
    except NearfarError as error:
        printer.fail(error)
        raise
    raise AssertionError("a stream of events ends with TaskFinished or an error")


def show_end(result: Result) -> None:
    """Print what was recalled for the task, and the summary, on standard error."""
    for reason in result.reasons:
        if reason.startswith(("memory: ", "private: ")):
            notes.print(Text(reason, style="dim"), soft_wrap=True)
    notes.print(summary(result), style="dim", soft_wrap=True)


def summary(result: Result) -> str:
    """Return one line: the model that answered, its confidence, tokens, dollars, energy and seconds."""
    where = "on this device" if result.served_on_device else "in the cloud"
    confidence = "" if result.confidence is None else f", confidence {result.confidence:.2f}"
    fallback = " after a fallback" if result.was_fallback else ""
    interventions = f", {result.interventions} interventions" if result.interventions else ""
    dollars = "price unknown" if result.dollars is None else f"${result.dollars:.6f}"
    tokens = f"{result.near.usage.total_tokens} near / {result.far.usage.total_tokens} far tokens"
    hits = sum(call.saved is not None for call in result.calls)
    cached = f", {hits} of {len(result.calls)} calls from the cache" if hits else ""
    cut = ", cut off by its budget" if result.budget_exceeded is not None else ""
    energy = result.energy
    joules = f", {energy.joules:.3g} J {energy.source}" if energy.joules else ""
    return f"{result.model} {where}{fallback}{cut}{confidence}{interventions}; {tokens}, {dollars}{joules}{cached}, {result.seconds:.2f} s"


class _Printer:
    """Prints the events of a task on standard error.

    At a terminal, text is shown as it streams in. An answer that is on the terminal already is not printed a second time.
    """

    def __init__(self) -> None:
        self._streamed = ""
        """Text of the current step."""
        self._failed: list[str] = []
        """A line for each failed attempt. The last one is printed when something follows it; otherwise the error says the same."""
        self._shown = 0
        """Number of printed lines."""

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
        """Print the last failed attempt unless the error says the same, and remove from the error's notes the printed ones."""
        if self._failed and not self._failed[-1].endswith(f"{error}") and error.message not in self._failed[-1]:
            self._show_failed()
        told = {f"before that, {line}" for line in self._failed[: self._shown]}
        error.__notes__ = [note for note in dict.fromkeys(getattr(error, "__notes__", ())) if note not in told]

    def _show_failed(self) -> None:
        for line in self._failed[self._shown :]:
            notes.print(f"\n{line}", style="yellow", soft_wrap=True)
        self._shown = len(self._failed)

    def finish(self, result: Result) -> None:
        """Print the answer, unless it is on the same terminal already."""
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


def _supervision(event: SupervisorSpoke) -> str:
    """Return a supervisor's plan or verdict, under a line that says which of both it is."""
    if event.verdict is None:
        return f"{event.agent} plans:\n{event.text}"
    shadow = ", in shadow" if event.shadow else ""
    return f"{event.agent} checks ({event.trigger}{shadow}): {event.verdict}\n{event.text}"
