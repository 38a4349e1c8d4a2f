"""`nearfar run` and `nearfar chat`: run one task, or talk turn by turn, and print what happens as it happens."""

import asyncio
import json
import shlex
import sys
from collections.abc import AsyncGenerator, AsyncIterator, Coroutine, Iterator, Sequence
from contextlib import aclosing, asynccontextmanager, closing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar
from uuid import uuid4

import typer
from rich.table import Column
from rich.text import Text

from ...protocols import ConfigError, InvalidRequest, NearfarError, NotFound
from ..compose.config import Config
from ..runs.erasing import open_store, rewrite
from ..runs.sessions import SessionStore, SessionSummary
from ..task.events import (
    AgentText,
    AttemptEnded,
    AttemptStarted,
    RoleStarted,
    SubtaskEnded,
    SubtasksPlanned,
    SupervisorSpoke,
    TaskEvent,
    TaskFinished,
    ToolFinished,
    ToolStarted,
)
from ..task.results import Result, SideUsage
from ..task.stores import RunsConfig
from ..util.text import spell_out
from . import options
from .running import (
    Line,
    Note,
    ago,
    count_text,
    error_as_json,
    execute,
    exit_code,
    fact_table,
    load_langgraph,
    notes,
    output,
    print_json,
    read_prompt,
    report_errors,
    right,
    show,
    show_error,
    table,
)
from .selection import chosen_config, open_hybrid, terminal_approver, warn_outside_world

if TYPE_CHECKING:
    from ..hybrid.arguments import TaskOptions
    from ..hybrid.session import Session

Served = TypeVar("Served")
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
    effort: options.EffortShare = None,
    public: options.Public = False,
    tools: options.Tools = None,
    role: options.RoleName = "",
    instructions: options.Instructions = None,
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
    selection = options.AgentChoice(config, near, far, strategy, mode, public, tools, instructions, effort)

    async def work() -> None:
        given: TaskOptions = {"timeout": timeout, "task_class": task_class, "tags": tag or (), "role": role, **selection.stated}
        given["output"] = _read_schema(schema) if schema else None
        given["approver"] = None if as_json else terminal_approver()
        if context is not None:
            given["context"] = _read_context(context)
        chosen = chosen_config(selection)
        warn_outside_world(text, chosen)
        if chosen.runs is not None:
            given["idempotency_key"] = uuid4().hex
        load_langgraph()
        async with open_hybrid(selection, chosen) as hybrid, _offer_resume(given):
            if as_json:
                print_json((await hybrid.run(text, **given)).model_dump(mode="json"))
            else:
                show_end(await show_events(hybrid.stream(text, **given)))

    execute(work(), as_json=as_json)


def chat(
    config: options.Config = None,
    near: options.Near = None,
    far: options.Far = None,
    strategy: options.StrategyName = None,
    mode: options.ModeName = None,
    public: options.Public = False,
    tools: options.Tools = None,
    role: options.RoleName = "",
    session: Annotated[str | None, typer.Option(help="Name of a conversation that is kept: continue it, or begin it.")] = None,
    user: Annotated[str, typer.Option(help="User whose conversation it is.")] = "",
    lists: Annotated[bool, typer.Option("--list", help="Print the conversations that are kept.")] = False,
    forget: Annotated[str | None, typer.Option(metavar="NAME", help="Forget a conversation, with all records of its turns.")] = None,
    as_json: options.AsJson = False,
    instructions: options.Instructions = None,
) -> None:
    """Talk to the agents, turn by turn. /help lists the commands.

    Ctrl-C stops the current turn; at the prompt it ends the chat. If a turn fails, the chat goes on; lines that come from a file or a
    pipe are all read, and the exit code is that of the last error. With --session, or with [runs] in the configuration, the conversation
    is kept.
    """
    selection = options.AgentChoice(config, near, far, strategy, mode, public, tools, instructions)
    # The event loop runs only during a turn: a thread that waits for input could not be stopped.
    with report_errors(as_json=as_json), asyncio.Runner() as runner:
        if sum((session is not None, lists, forget is not None)) > 1:
            raise ConfigError("--session, --list and --forget do not go together", hint="use one of them")
        if lists or forget is not None:
            _manage_sessions(config, forget, user, as_json=as_json)
            return
        chosen = chosen_config(selection)
        if session is not None and chosen.runs is None:
            chosen = chosen.model_copy(update={"runs": RunsConfig()})
        hybrid = open_hybrid(selection, chosen)
        try:
            load_langgraph()
            given: TaskOptions = {"user": user, "role": role, **selection.stated, "approver": None if as_json else terminal_approver()}
            talk = hybrid.session(uuid4().hex if session is None else session, **given)
            failure = _Chat(runner, talk, chosen, as_json=as_json).converse()
        finally:
            runner.run(hybrid.aclose())
    if failure is not None and not sys.stdin.isatty():
        raise typer.Exit(exit_code(failure))


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


def _manage_sessions(config: Path | None, forget: str | None, user: str, *, as_json: bool) -> None:
    """Forget a session that is kept, or list all of them."""
    section = options.read_section(config, "runs", RunsConfig)
    with closing(open_store(section)) as store:
        sessions = SessionStore(store)
        if forget is None:
            found = sessions.list()
            show({"sessions": [each.model_dump(mode="json") for each in found]}, _session_lines(found), as_json=as_json)
            return
        turns = sessions.forget(forget, user)
    if not turns:
        raise NotFound(
            f"there is no conversation {forget!r}", hint="nearfar chat --list shows them; one of a user is named with --user, too"
        )
    rewrite(section)
    show(
        {"session": forget, "turns": turns},
        [Note(f"{spell_out(forget)} is forgotten, with {count_text(turns, 'turn')}", "")],
        as_json=as_json,
    )


def _session_lines(found: Sequence[SessionSummary]) -> Iterator[Line]:
    if not found:
        yield Note("no conversation is kept yet; nearfar chat --session NAME begins one", style="")
        return
    rows = ((spell_out(each.name), spell_out(each.user), str(each.turns), ago(each.last), spell_out(each.title)) for each in found)
    yield table([Column(name, overflow="fold") for name in ("session", "user", "turns", "last", "prompt")], rows)


class _Chat:
    """Reads lines from standard input: each is a turn of a session, or a command about it."""

    def __init__(self, runner: asyncio.Runner, session: "Session", config: Config, *, as_json: bool) -> None:
        self._runner = runner
        self._session = session
        self._config = config
        self._as_json = as_json
        self._commands = {"/help": self._help, "/reset": self._reset, "/cost": self._cost, "/why": self._why}

    def converse(self) -> NearfarError | None:
        """Serve turns until the user ends the chat. Return the last error, if there was one."""
        self._begin()
        failure: NearfarError | None = None
        while (said := self._read()) is not None and said.strip().lower() not in _ENDINGS:
            word = said.rstrip()
            if not word:
                continue
            try:
                if word in self._commands:
                    self._commands[word]()
                elif said.startswith("/"):
                    raise InvalidRequest(
                        f"there is no command {word.split()[0]}", hint="/help lists them; to send the line, begin it with a space"
                    )
                else:
                    warn_outside_world(said, self._config)
                    self._end(self._serve(self._turn(said)))
            except NearfarError as error:
                self._report(error)
                failure = error
            except KeyboardInterrupt:
                notes.print("\nstopped; Ctrl-D ends the chat", style="dim")
        if self._config.runs is not None and self._session.messages:
            names = ["--session", self._session.name, *(("--user", self._session.user) if self._session.user else ())]
            notes.print(f"to continue: nearfar chat {shlex.join(names)}", style="dim", soft_wrap=True)
        return failure

    def _begin(self) -> None:
        """Say how the chat ends, and finish a turn that was left unfinished."""
        turns = sum(message.role == "user" for message in self._session.messages)
        known = f"; {count_text(turns, 'prompt')} so far" if turns else ""
        notes.print(f"end with exit or Ctrl-D; /help lists the commands{known}", style="dim")
        try:
            resumed = self._serve(self._session.resume())
        except NearfarError as error:  # the conversation goes on without it
            self._report(error)
            return
        if resumed is not None:
            notes.print("the turn that was interrupted is finished:", style="dim")
            show(resumed.model_dump(mode="json"), [Text(resumed.text)], as_json=self._as_json)

    def _read(self) -> str | None:
        return _read_turn(prompt="" if self._as_json else "> ")

    def _serve(self, turn: Coroutine[Any, Any, Served]) -> Served:
        with output.keep_stdout():
            return self._runner.run(turn)

    async def _turn(self, said: str) -> Result:
        if self._as_json:
            return await self._session.send(said)
        return await show_events(self._session.stream(said))

    def _end(self, result: Result) -> None:
        if self._as_json:
            print_json(result.model_dump(mode="json"))
        else:
            show_end(result)

    def _report(self, error: NearfarError) -> None:
        if self._as_json:
            print_json(error_as_json(error))
        else:
            show_error(error)

    def _help(self) -> None:
        rows = {
            "/cost": "tokens and dollars of this conversation, by side",
            "/why": "how the last answer came about",
            "/reset": "begin a new conversation under this name",
            "exit": "end the chat; so do quit and Ctrl-D",
        }
        show({"commands": rows}, [fact_table(rows.items())], as_json=self._as_json)

    def _reset(self) -> None:
        self._runner.run(self._session.reset())
        show({"session": self._session.name, "state": "empty"}, [Note("a new conversation begins")], as_json=self._as_json)

    def _cost(self) -> None:
        sides = {"near": self._session.near, "far": self._session.far}
        rows = (
            (side, str(usage.steps), f"{usage.usage.input_tokens:,}", f"{usage.usage.output_tokens:,}", _dollars(usage))
            for side, usage in sides.items()
        )
        lines = [table(["side", *right("calls", "tokens read", "tokens written", "dollars")], rows)]
        show({side: usage.model_dump(mode="json") for side, usage in sides.items()}, lines, as_json=self._as_json)

    def _why(self) -> None:
        result = self._session.last_result
        if result is None:
            raise InvalidRequest("nothing was answered yet", hint="/why explains the last answer")
        told = result.model_dump(mode="json", include={"decision", "selection", "reasons", "attempts", "label"})
        show(told, _why_lines(result), as_json=self._as_json)


def _dollars(usage: SideUsage) -> str:
    return "unknown" if usage.dollars is None else f"{usage.dollars:.6f}"


def _why_lines(result: Result) -> Iterator[Line]:
    left_out = (f"{each.agent} left out: {each.objection}" for each in result.decision.considered if each.objection is not None)
    for reason in dict.fromkeys((*result.reasons, *left_out)):  # a reason may name the same objection
        yield Text(f"- {reason}")
    if result.label.told_origins:
        yield Text(f"label: {result.label.tier}, {result.label.integrity}, because of {', '.join(result.label.told_origins)}")
    yield Note(summary(result))


def _read_turn(prompt: str) -> str | None:
    """Return the line that the user types; None at the end of input."""
    try:
        return output.input(prompt)
    except EOFError:
        notes.print()
        return None


async def show_events(stream: AsyncGenerator[TaskEvent, None]) -> Result:
    """Print a task as it happens; print the answer on standard output, once."""
    printer = _Printer()
    try:
        async with aclosing(stream) as events:
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
        case RoleStarted() if event.by:
            notes.print(Text(f"\n{event.by} hands over to {event.role}: {event.task[:_SHOWN_RESULT]}", style="dim italic"), soft_wrap=True)
        case RoleStarted():
            notes.print(Text(f"{event.role}:", style="dim italic"), soft_wrap=True)
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
