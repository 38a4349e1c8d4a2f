"""Turns as a `Hybrid` serves them: what is asked, the turn that a result stands for, and its stream."""

from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, Self, Unpack, cast

from pydantic import ValidationError

from ...protocols import FinishReason, InvalidRequest, Message, Side, StepRequest, ToolChoice, ToolSpec
from ...protocols.validation import check_schema
from ..agents import AgentPool
from ..strategies.prompts import require_own_tools
from ..strategies.state import TaskContext, TaskState, as_json, fresh_start
from ..task import Prompt, Task, as_messages
from ..task.decisions import RouteDecision
from ..task.events import (
    AgentText,
    AttemptStarted,
    CallEnded,
    CallerTools,
    Routed,
    Speaker,
    TaskEvent,
    TaskFinished,
    Turn,
    TurnCall,
    TurnEvent,
    TurnFinished,
    TurnText,
)
from ..task.foreign import ForeignTool, is_langchain_tool, langchain_spec
from ..task.modes import ALONE, Strategy
from ..task.results import Call, Result
from ..task.tools import Tool
from ..util.runtime import in_own_task
from .arguments import TaskOptions, TurnOptions, check_options
from .pipeline import Pipeline

_BETWEEN = "\n\n"
"""Between the texts of two steps."""
_WORDS = frozenset(ToolChoice)
_HINT = 'a ToolSpec, {"name": ..., "description": ..., "parameters": {JSON Schema}}, or one of OpenAI\'s or Anthropic\'s form'


@dataclass(frozen=True)
class AskedTurn:
    """A turn as its caller asks for it."""

    messages: tuple[Message, ...]
    caller: CallerTools
    options: TaskOptions

    @classmethod
    def of(cls, prompt: object, tools: object, tool_choice: object, options: TurnOptions) -> Self:
        """Return what is asked. Raises `InvalidRequest` for what cannot be used, and for results of calls that were never made."""
        check_options(options, TurnOptions.__optional_keys__)
        messages = as_messages(prompt)
        _check_results(messages)
        given = cast(dict[str, Any], dict(options))
        caller = _caller_tools(tools, tool_choice, parallel=given.pop("parallel_calls", True))
        return cls(messages, caller, cast(TaskOptions, given))


def _check_results(messages: Sequence[Message]) -> None:
    called: set[str] = set()
    for place, message in enumerate(messages):
        called.update(call.id for call in message.tool_calls)
        result = message.tool_result
        if result is not None and result.call_id not in called:
            hint = "the prompt holds the assistant's message with the call, too: Turn.message is that of the last turn"
            raise InvalidRequest(f"messages[{place}] is the result of call {result.call_id!r}, which no message makes", hint=hint)


def _caller_tools(tools: object, choice: object, *, parallel: object) -> CallerTools:
    if isinstance(tools, (str, Mapping)) or not isinstance(tools, Sequence):
        raise InvalidRequest(f"tools must be a list of tools, not {type(tools).__name__}", hint=_HINT)
    if not isinstance(choice, str):
        raise InvalidRequest(f"tool_choice must be a text, not {type(choice).__name__}", hint=f"{', '.join(ToolChoice)}, or a tool's name")
    specs = tuple(_spec(tool, f"tools[{place}]") for place, tool in enumerate(tools))
    only = "" if choice in _WORDS else choice
    try:
        return CallerTools.model_validate(
            {"specs": specs, "choice": ToolChoice.REQUIRED if only else choice, "only": only, "parallel": parallel}
        )
    except ValidationError as error:
        raise InvalidRequest(_problem(error), hint=f"tool_choice: {', '.join(ToolChoice)}, or a tool's name") from error


def _spec(given: object, where: str) -> ToolSpec:
    """Return a tool that the caller describes: our own, OpenAI's `function`, or Anthropic's `input_schema`."""
    if isinstance(given, Tool):
        return given.spec
    if is_langchain_tool(given):
        return langchain_spec(given)
    if not isinstance(given, (ToolSpec, Mapping)):
        raise InvalidRequest(f"{where} is no tool but {type(given).__name__}", hint=_HINT)
    fields = dict(given) if isinstance(given, ToolSpec) else given
    inner = fields["function"] if isinstance(fields.get("function"), Mapping) else fields
    parameters = inner.get("parameters", inner.get("input_schema")) or {}
    try:
        schema = {"type": "object", "properties": {}, **parameters}
        spec = ToolSpec(name=inner["name"], description=inner.get("description") or "", parameters=schema)
    except (KeyError, TypeError) as error:
        raise InvalidRequest(f"{where} describes no tool", hint=_HINT) from error
    except ValidationError as error:
        raise InvalidRequest(f"{where}: {_problem(error)}", hint=_HINT) from error
    check_schema(spec.parameters, f"{where}: its parameters")
    return spec


def _problem(error: ValidationError) -> str:
    first = error.errors(include_url=False, include_input=False)[0]
    return ".".join(map(str, first["loc"])) + ": " * bool(first["loc"]) + first["msg"].removeprefix("Value error, ")


def turn_of(result: Result, asked: AskedTurn, pool: AgentPool, *, heard: str = "") -> Turn:
    """Return the turn that a result stands for. `heard`: the text that the caller has heard of it."""
    made = result.messages[len(asked.messages) :]
    said = [result.text] if asked.options.get("output") is not None else [message.text for message in made if message.role == "assistant"]
    last = _last_step(result)
    calls = made[-1].tool_calls if made else ()
    reason = FinishReason.STOP if last is None or last.finish_reason is None else last.finish_reason
    if reason is not FinishReason.LENGTH:
        reason = FinishReason.TOOL_CALLS if calls else FinishReason.STOP
    return Turn(
        id=result.id,
        text=heard or _BETWEEN.join(text for text in said if text),
        calls=calls,
        finish_reason=reason,
        stop=None if last is None or reason is not FinishReason.STOP else last.stop,
        output=result.output,
        agent=result.agent,
        side=result.side,
        model=result.model,
        usage=result.attempts[-1].usage if last is None else last.saved or last.usage,
        confidence=result.confidence,
        logprobs=() if last is None else last.logprobs,
        dollars=result.dollars,
        saved=pool.saved_against_far(result),
        result=result,
    )


def _last_step(result: Result) -> Call | None:
    """Return the last step of the attempt that stands."""
    own = [call for call in result.calls if call.agent == result.agent and call.error is None and call.verdict is None]
    return next((call for call in reversed(own) if call.took_step), own[-1] if own else None)


async def turn_events(events: AsyncGenerator[TaskEvent, None], asked: AskedTurn, pool: AgentPool) -> AsyncGenerator[TurnEvent, None]:
    """Yield the events of a turn, given those of its task, whose texts are only of attempts that stand."""
    heard, is_between = "", False
    strategy: Strategy | None = None
    by: Speaker | None = None
    async for event in events:
        match event:
            case Routed():
                strategy = event.decision.strategy
            case AttemptStarted() if strategy is not None:
                by = Speaker(agent=event.agent, side=event.side, model=event.model, strategy=strategy)
            case AgentText() if by is not None:  # else the run is resumed: who speaks was told before, and all is told at the end
                piece = f"{_BETWEEN}{event.text}" if is_between and heard else event.text
                heard, is_between = heard + piece, False
                yield TurnText(text=piece, by=by)
            case CallEnded():
                is_between = True
            case TaskFinished():
                for last in _ending(turn_of(event.result, asked, pool, heard=heard), has_text=bool(heard)):
                    yield last


def _ending(turn: Turn, *, has_text: bool) -> Sequence[TurnEvent]:
    """Return what is left to tell at the end: the text of an attempt that was held back, the calls, and the turn."""
    text = [] if has_text or not turn.text else [TurnText(text=turn.text, by=turn.speaker)]
    return [*text, *(TurnCall(call=call) for call in turn.calls), TurnFinished(turn=turn)]


async def _first_request(task: Task, decision: RouteDecision, context: TaskContext, pool: AgentPool) -> StepRequest:
    """Return the first step of a turn, as the first candidate would be asked for it."""
    from ..strategies.calls import for_agent  # both load LangGraph, which importing nearfar does not
    from ..strategies.turn import AgentTurn

    state: TaskState = {"task": as_json(task), "decision": as_json(decision), "draft": None, **fresh_start(task, position=0)}
    turn = AgentTurn(state, pool, context.output_model)
    agent = await turn.open()
    if agent.card.world is not None:
        require_own_tools(agent.card, context.specs)
    turn.prepare(agent, context.specs)
    return for_agent(turn.request(context.specs), turn.handle, agent.card)


class ServesTurns:
    """Serves turns by the pipeline of a `Hybrid`."""

    _pipeline: Pipeline

    async def turn(
        self,
        prompt: Prompt,
        *,
        tools: Sequence[ToolSpec | ForeignTool | Mapping[str, Any]] = (),
        tool_choice: ToolChoice | str = ToolChoice.AUTO,
        **options: Unpack[TurnOptions],
    ) -> Turn:
        """Serve one turn of a conversation whose tools the caller runs, and return the answer or the calls of these tools.

        It goes the way of `run`: rules, privacy, budgets, evidence, cache, records. Calls of the caller's tools end it; the results belong
        into the next turn's prompt, and count as untrusted content. The `Hybrid`'s own tools run inside the turn, but those that are called
        together with one of the caller's wait for a later turn. With `session`, results go to the agent that made the calls, and later
        turns are as private as what own tools have read; a conversation without a name does not know of that.

        Raises what `run` raises; `InvalidRequest` for results of calls that no message makes, and `Unsupported` for a strategy that cannot
        hand calls back (`minions`, `subtasks`), both before anything is spent.

        Args:
            prompt: the whole conversation, with the assistant's calls and the tools' results, in our form, OpenAI's or LangChain's.
            tools: the caller's, in our form, OpenAI's, Anthropic's or LangChain's. One of them hides the `Hybrid`'s tool of the same name.
            tool_choice: `auto`, `none`, `required`, or the name of the tool that has to be called.
            options: the fields of `TurnOptions`.
        """
        asked = AskedTurn.of(prompt, tools, tool_choice, options)
        return turn_of(await self._pipeline.run(asked.messages, asked.options, caller=asked.caller), asked, self._pipeline.pool)

    @in_own_task
    async def stream_turn(
        self,
        prompt: Prompt,
        *,
        tools: Sequence[ToolSpec | ForeignTool | Mapping[str, Any]] = (),
        tool_choice: ToolChoice | str = ToolChoice.AUTO,
        **options: Unpack[TurnOptions],
    ) -> AsyncGenerator[TurnEvent, None]:
        """Serve one turn as `turn` does and yield its text, its calls and at last the turn.

        Text of an attempt that may still be rejected is held back until it stands, and so is JSON for `output`. Closing the stream cancels
        the turn.

        Args:
            prompt: see `turn`.
            tools: see `turn`.
            tool_choice: see `turn`.
            options: see `turn`.
        """
        asked = AskedTurn.of(prompt, tools, tool_choice, options)
        async with (
            aclosing(self._pipeline.stream(asked.messages, asked.options, caller=asked.caller)) as events,
            aclosing(turn_events(events, asked, self._pipeline.pool)) as turn,
        ):
            async for event in turn:
                yield event

    async def count_turn_tokens(
        self,
        prompt: Prompt,
        *,
        tools: Sequence[ToolSpec | ForeignTool | Mapping[str, Any]] = (),
        tool_choice: ToolChoice | str = ToolChoice.AUTO,
        **options: Unpack[TurnOptions],
    ) -> int | None:
        """Return the tokens of the prompt that a turn would begin with, by the tokenizer and the template of the near agent that would
        begin it: instructions, recalled memory and tools included.

        None where a far agent or several agents would begin it, or the near one cannot count. Nothing is run. Raises what `turn` raises
        before its first step.

        Args:
            prompt: see `turn`.
            tools: see `turn`.
            tool_choice: see `turn`.
            options: see `turn`.
        """
        asked = AskedTurn.of(prompt, tools, tool_choice, options)
        task, decision, context = await self._pipeline.foresee(asked.messages, asked.options, caller=asked.caller)
        pool = self._pipeline.pool
        first = pool[decision.candidates[0]]
        if first.side is Side.FAR or decision.strategy not in ALONE:
            return None
        return await first.count_tokens(await _first_request(task, decision, context, pool))

    @in_own_task
    async def follow_turn(
        self,
        prompt: Prompt,
        *,
        tools: Sequence[ToolSpec | ForeignTool | Mapping[str, Any]] = (),
        tool_choice: ToolChoice | str = ToolChoice.AUTO,
        **options: Unpack[TurnOptions],
    ) -> AsyncGenerator[TaskEvent, None]:
        """Serve one turn as `stream_turn` does and yield all that happens: attempts, tools, approvals, costs, text of attempts that stand.

        The last event is `TaskFinished`; the caller's calls are those of the last message of its result.

        Args:
            prompt: see `turn`.
            tools: see `turn`.
            tool_choice: see `turn`.
            options: see `turn`.
        """
        asked = AskedTurn.of(prompt, tools, tool_choice, options)
        async with aclosing(self._pipeline.stream(asked.messages, asked.options, caller=asked.caller)) as events:
            async for event in events:
                yield event
