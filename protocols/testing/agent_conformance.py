"""The public conformance suite: what every implementation of `Agent` must do, in-process and over every transport.

    from nearfar.protocols.testing.agent_conformance import CHECKS, Subject, run_check
    from nearfar.protocols.testing import TRANSPORTS

    @pytest.mark.anyio
    @pytest.mark.parametrize("transport", TRANSPORTS, ids=lambda transport: transport.__name__)
    @pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
    async def test_my_agent_keeps_the_contract(check, transport):
        await run_check(check, Subject(create=..., prompt=..., long_prompt=...), transport)

A check raises `AssertionError` if the contract is broken, and `unittest.SkipTest` (which pytest shows as skipped) if it does not
apply to the agent.
"""

import asyncio
from base64 import b64decode
from collections.abc import Awaitable, Callable
from typing import TypeAlias
from unittest import SkipTest

import anyio

from ..agent import Side, complete, stream
from ..attachments import Attachment
from ..errors import (
    Cancelled,
    ContextOverflow,
    DeadlineExceeded,
    InvalidRequest,
    NearfarError,
    PrivacyViolation,
    Unavailable,
    Unsupported,
)
from ..steps import (
    Finished,
    FinishReason,
    Message,
    Sensitivity,
    StepEvent,
    StepRequest,
    TextDelta,
    ToolChoice,
    ToolResult,
    ToolSpec,
)
from ..validation import check_arguments, parse_output
from . import Case, SchemaUse, Subject, ToolUse, Transport, UnicodeUse, expect, expect_error, in_process

__all__ = ["CHECKS", "Case", "Check", "SchemaUse", "Subject", "ToolUse", "UnicodeUse", "run_check"]

Check: TypeAlias = Callable[[Case], Awaitable[None]]

_CLOSE_LIMIT = 10.0
_RED_PIXEL = b64decode("iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAIAAACQd1PeAAAADElEQVR4nGP4z8AAAAMBAQDJ/pLvAAAAAElFTkSuQmCC")


async def run_check(check: Check, subject: Subject, transport: Transport = in_process) -> None:
    """Run one check on a fresh agent behind `transport`. Raises `TimeoutError` if it hangs."""
    with anyio.fail_after(subject.time_limit):
        local = await subject.create()
        try:
            async with transport(local) as agent:
                await check(Case(subject=subject, agent=agent, local=local))
        finally:
            with anyio.move_on_after(_CLOSE_LIMIT, shield=True):
                await local.aclose()


async def card_is_stable(case: Case) -> None:
    expect(case.agent.card == case.agent.card, "the card must not change between two reads")
    expect(case.agent.card == case.local.card, "the transport must carry the card unchanged")


async def text_streams_and_ends_with_one_finished(case: Case) -> None:
    events = await _events(case, case.request(case.subject.long_prompt))
    expect(isinstance(events[-1], Finished), f"the last event is {events[-1]!r}, not Finished")
    expect(sum(isinstance(event, Finished) for event in events) == 1, "there must be exactly one Finished")
    texts = [event for event in events if isinstance(event, TextDelta)]
    expect(len(texts) > 1, "long text must come in several events, as it is generated")
    expect(all(event.text for event in texts), "a TextDelta must not be empty")


async def usage_is_counted(case: Case) -> None:
    short = await complete(case.agent, case.request(case.subject.prompt))
    messages = (Message.user("Hello there."), Message.assistant("Hello."), Message.user(case.subject.prompt))
    longer = await complete(case.agent, case.request("", messages=messages))
    for reply in (short, longer):
        usage = reply.finished.usage
        expect(usage.input_tokens > 0 and usage.output_tokens > 0, f"tokens were used, and usage says {usage}")
        expect(usage.cached_tokens <= usage.input_tokens, f"cached tokens are a part of the input, and usage says {usage}")
    expect(
        longer.finished.usage.input_tokens > short.finished.usage.input_tokens,
        "a longer conversation must count more input tokens, cached ones included",
    )


async def finished_names_the_model(case: Case) -> None:
    reply = await complete(case.agent, case.request(case.subject.prompt))
    expect(reply.finished.model, "Finished.model must name the model that answered")


async def output_limit_is_kept(case: Case) -> None:
    limit = case.subject.least_output_tokens
    reply = await complete(case.agent, case.request(case.subject.long_prompt, max_output_tokens=limit))
    expect(reply.finished.reason is FinishReason.LENGTH, f"the reason must be 'length', and is {reply.finished.reason}")
    expect(reply.finished.usage.output_tokens <= limit, f"max_output_tokens is {limit}, and usage says {reply.finished.usage}")


async def stop_sequence_ends_the_text(case: Case) -> None:
    if not case.agent.card.capabilities.seed:
        raise SkipTest("the agent is not reproducible, so the text before a stop sequence is not known")
    text = (await complete(case.agent, case.request(case.subject.long_prompt, seed=7))).text
    stop = text[len(text) // 2 :][:3]
    reply = await complete(case.agent, case.request(case.subject.long_prompt, seed=7, stop=(stop,)))
    expect(reply.text == text[: text.index(stop)], f"the text must end before {stop!r}, and is {reply.text!r}")
    expect(reply.finished.reason is FinishReason.STOP, f"the reason must be 'stop', and is {reply.finished.reason}")
    expect(reply.finished.stop in (stop, None), f"{stop!r} has ended the text, and the agent says that {reply.finished.stop!r} has")


async def tool_call_makes_a_round_trip(case: Case) -> None:
    use = case.subject.tool_use
    if use is None:
        await _tools_are_refused(case)
        return
    expect(case.agent.card.capabilities.tools, "the subject has tool_use, and the card does not claim tools")
    question = Message.user(use.prompt)
    asked = await complete(case.agent, case.request("", messages=(question,), tools=use.tools))
    expect(asked.tool_calls, f"the prompt must lead to a tool call, and led to {asked.text!r}")
    expect(asked.finished.reason is FinishReason.TOOL_CALLS, f"the reason must be 'tool_calls', and is {asked.finished.reason}")
    expect(len({call.id for call in asked.tool_calls}) == len(asked.tool_calls), "call ids must be unique")
    for call in asked.tool_calls:
        check_arguments(call, use.tools)
    results = (Message.tool(ToolResult(call_id=call.id, name=call.name, content=use.result)) for call in asked.tool_calls)
    answered = await complete(case.agent, case.request("", messages=(question, asked.message, *results), tools=use.tools))
    expect(answered.text or answered.tool_calls, "after the tool result the agent must say or call something")


async def tool_choice_none_calls_no_tool(case: Case) -> None:
    use = case.subject.tool_use
    if use is None:
        raise SkipTest("the agent does not claim tools")
    try:
        reply = await complete(case.agent, case.request(case.subject.prompt, tools=use.tools, tool_choice=ToolChoice.NONE))
    except NearfarError as error:
        raise AssertionError(f"a step that may not call tools must still answer, and raised {error!r}") from error
    expect(not reply.tool_calls, f"tool_choice is 'none', and the agent called {reply.tool_calls}")


async def output_schema_is_kept(case: Case) -> None:
    use = case.subject.schema_use
    if use is None:
        expect(not case.agent.card.capabilities.json_schema, "the card claims json_schema, and the subject has no schema_use")
        with expect_error(Unsupported):
            await complete(case.agent, case.request(case.subject.prompt, output_schema={"type": "object"}))
        return
    expect(case.agent.card.capabilities.json_schema, "the subject has schema_use, and the card does not claim json_schema")
    reply = await complete(case.agent, case.request(use.prompt, output_schema=use.schema))
    parse_output(reply.text, use.schema)


async def broken_output_schema_is_refused(case: Case) -> None:
    if case.subject.schema_use is None:
        raise SkipTest("the agent does not claim json_schema")
    with expect_error(InvalidRequest):
        await complete(case.agent, case.request(case.subject.prompt, output_schema={"type": "no such type"}))


async def closing_the_stream_stops_the_compute(case: Case) -> None:
    _cancellation_can_be_proved(case)
    async with stream(case.agent, case.request(case.subject.long_prompt)) as events:
        await anext(aiter(events))
    await _compute_has_stopped(case)


async def abandoning_the_stream_stops_the_compute(case: Case) -> None:
    _cancellation_can_be_proved(case)
    async for _ in case.agent.step(case.request(case.subject.long_prompt)):
        break
    await _compute_has_stopped(case)


async def cancelling_the_task_stops_the_compute(case: Case) -> None:
    _cancellation_can_be_proved(case)
    started = anyio.Event()

    async def read() -> None:
        async with stream(case.agent, case.request(case.subject.long_prompt)) as events:
            async for _ in events:
                started.set()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(read)
        await started.wait()
        tasks.cancel_scope.cancel()
    await _compute_has_stopped(case)


async def deadline_ends_the_step(case: Case) -> None:
    with expect_error(DeadlineExceeded):
        await complete(case.agent, case.request(case.subject.long_prompt, timeout=0.001))
    await case.until_idle()
    await complete(case.agent, case.request(case.subject.prompt))


async def characters_split_across_tokens_arrive_whole(case: Case) -> None:
    use = case.subject.unicode_use
    if use is None:
        raise SkipTest("the subject gives no unicode_use")
    events = await _events(case, case.request(use.prompt))
    text = "".join(event.text for event in events if isinstance(event, TextDelta))
    expect(use.expected in text, f"the text must hold {use.expected!r}, and is {text!r}")
    expect("\N{REPLACEMENT CHARACTER}" not in text, "a character was cut in two")


async def overlong_prompt_overflows_the_context(case: Case) -> None:
    window = case.agent.card.limits.context_tokens
    prompt = case.subject.overflow_prompt
    if prompt is None and window is None:
        raise SkipTest("the agent's context window is not known")
    with expect_error(ContextOverflow):
        await complete(case.agent, case.request(prompt or " ".join(map(str, range((window or 0) + 1)))))
    await complete(case.agent, case.request(case.subject.prompt))


async def empty_prompt_is_refused(case: Case) -> None:
    with expect_error(InvalidRequest):
        await complete(case.agent, case.request(""))


async def concurrent_steps_interleave(case: Case) -> None:
    log: list[tuple[str, StepEvent]] = []

    async def read(name: str) -> None:
        async with stream(case.agent, case.request(case.subject.long_prompt)) as events:
            async for event in events:
                log.append((name, event))

    async with anyio.create_task_group() as tasks:
        for name in ("first", "second"):
            tasks.start_soon(read, name)
    finished = [index for index, (_, event) in enumerate(log) if isinstance(event, Finished)]
    expect(len(finished) == 2, "both concurrent steps must finish")
    if case.agent.card.limits.concurrency > 1:
        names_before = {name for name, _ in log[: finished[0]]}
        expect(len(names_before) == 2, "limits.concurrency is above 1, and one step waited until the other had finished")


async def closing_a_busy_agent_ends_its_steps(case: Case) -> None:
    started = asyncio.Event()
    outcome: list[NearfarError | None] = []

    async def read() -> None:
        try:
            async with stream(case.agent, case.request(case.subject.long_prompt)) as events:
                async for _ in events:
                    started.set()
            outcome.append(None)
        except NearfarError as error:
            outcome.append(error)
        finally:
            started.set()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(read)
        await started.wait()
        await case.agent.aclose()
    expect(outcome, "a step must end when its agent closes")
    expect(
        outcome[0] is None or isinstance(outcome[0], Unavailable | Cancelled),
        f"a step whose agent closes ends with Unavailable or Cancelled, and raised {outcome[0]!r}",
    )
    await case.until_idle()
    with expect_error(Unavailable):
        await complete(case.agent, case.request(case.subject.prompt))
    await case.agent.aclose()


async def confidence_is_a_probability(case: Case) -> None:
    confidence = (await complete(case.agent, case.request(case.subject.prompt))).finished.confidence
    claimed = case.agent.card.capabilities.confidence
    expect((confidence is not None) == claimed, f"the card says confidence={claimed}, and Finished.confidence is {confidence}")
    expect(confidence is None or 0.0 <= confidence <= 1.0, f"confidence must be within 0 and 1, and is {confidence}")


async def same_seed_gives_the_same_text(case: Case) -> None:
    if not case.agent.card.capabilities.seed:
        raise SkipTest("the agent does not claim seeds")
    replies = [await complete(case.agent, case.request(case.subject.long_prompt, seed=7, temperature=1.0)) for _ in range(2)]
    expect(replies[0].text == replies[1].text, f"one seed gave two texts: {replies[0].text!r} and {replies[1].text!r}")


async def samplers_are_taken(case: Case) -> None:
    samplers = {"top_p": 0.9, "top_k": 40, "min_p": 0.05, "presence_penalty": 0.2, "frequency_penalty": 0.2}
    await complete(case.agent, case.request(case.subject.prompt, temperature=0.7, seed=7, **samplers))
    if case.agent.card.capabilities.seed:
        greedy = await complete(case.agent, case.request(case.subject.prompt, temperature=0.0))
        first = await complete(case.agent, case.request(case.subject.prompt, temperature=1.0, seed=7, top_k=1))
        expect(first.text == greedy.text, f"top_k=1 must take the likeliest token each time, and gave {first.text!r}")


async def log_probabilities_come_with_the_text(case: Case) -> None:
    request = case.request(case.subject.prompt, top_logprobs=2)
    if not case.agent.card.capabilities.logprobs:
        with expect_error(Unsupported):
            await complete(case.agent, request)
        return
    reply = await complete(case.agent, request)
    tokens = reply.finished.logprobs
    expect("".join(token.token for token in tokens).strip().startswith(reply.text.strip()), f"the tokens of {reply.text!r} are {tokens}")
    for token in tokens:
        top = [each.logprob for each in token.top]
        expect(len(top) <= 2 and top == sorted(top, reverse=True), f"two alternatives were asked for, and came as {token.top}")
        expect(not top or top[0] >= token.logprob, f"{token.token!r} is likelier than the likeliest token: {token}")
    plain = await complete(case.agent, case.request(case.subject.prompt))
    expect(not plain.finished.logprobs, "log-probabilities come only where they are asked for")


async def images_are_read_or_refused(case: Case) -> None:
    question = Message.user("Which colour is this?", (Attachment(media_type="image/png", data=_RED_PIXEL),))
    request = case.request("", messages=(question,))
    if not case.agent.card.capabilities.images:
        with expect_error(Unsupported):
            await complete(case.agent, request)
        return
    seen = (await complete(case.agent, request)).finished.usage
    unseen = (await complete(case.agent, case.request(question.text))).finished.usage
    expect(seen.input_tokens > unseen.input_tokens, f"an image must count as input; with and without it usage says {seen} and {unseen}")


async def far_agent_refuses_private_text(case: Case) -> None:
    if case.agent.card.side is Side.NEAR:
        raise SkipTest("the agent is near")
    with expect_error(PrivacyViolation):
        await complete(case.agent, case.request(case.subject.prompt, sensitivity=Sensitivity.PRIVATE))


CHECKS: tuple[Check, ...] = (
    card_is_stable,
    text_streams_and_ends_with_one_finished,
    usage_is_counted,
    finished_names_the_model,
    output_limit_is_kept,
    stop_sequence_ends_the_text,
    tool_call_makes_a_round_trip,
    tool_choice_none_calls_no_tool,
    output_schema_is_kept,
    broken_output_schema_is_refused,
    closing_the_stream_stops_the_compute,
    abandoning_the_stream_stops_the_compute,
    cancelling_the_task_stops_the_compute,
    deadline_ends_the_step,
    characters_split_across_tokens_arrive_whole,
    overlong_prompt_overflows_the_context,
    empty_prompt_is_refused,
    concurrent_steps_interleave,
    closing_a_busy_agent_ends_its_steps,
    confidence_is_a_probability,
    same_seed_gives_the_same_text,
    samplers_are_taken,
    log_probabilities_come_with_the_text,
    images_are_read_or_refused,
    far_agent_refuses_private_text,
)
"""Every check; each runs on a fresh agent."""


async def _events(case: Case, request: StepRequest) -> list[StepEvent]:
    async with stream(case.agent, request) as events:
        return [event async for event in events]


async def _tools_are_refused(case: Case) -> None:
    expect(not case.agent.card.capabilities.tools, "the card claims tools, and the subject has no tool_use")
    with expect_error(Unsupported):
        await complete(case.agent, case.request(case.subject.prompt, tools=(ToolSpec(name="lookup"),)))


def _cancellation_can_be_proved(case: Case) -> None:
    if not case.agent.card.capabilities.cancellation:
        raise SkipTest("the agent does not claim cancellation")
    provable = case.subject.live_steps is not None or case.subject.tokens_decoded is not None
    expect(provable, "the card claims cancellation; give live_steps or tokens_decoded, so that it can be proved")


async def _compute_has_stopped(case: Case) -> None:
    """Assert that no step is live, and that a further step runs without tokens of an earlier one."""
    await case.until_idle()
    before = case.tokens_decoded
    reply = await complete(case.agent, case.request(case.subject.prompt))
    await case.until_idle()
    generated = case.tokens_decoded - before
    allowed = reply.finished.usage.output_tokens + case.subject.tokens_after_cancel
    expect(generated <= allowed, f"after a cancellation {generated} tokens were generated where at most {allowed} were expected")
