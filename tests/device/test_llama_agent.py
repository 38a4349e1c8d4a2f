"""What LlamaAgent generates: schemas, tool calls, stop sequences, Unicode, seeds, prefixes and limits."""

import asyncio
import json
from collections import Counter
from pathlib import Path

import anyio
import numpy as np
import pytest
from llama_engine import require_llama

require_llama()
from llama_cpp import Llama
from near_model import NEAR, OPEN, QUESTION, ask, long_prompt, near_agent
from tiny_gguf import WIDTH, TinyModel, write_tiny_gguf

from nearfar import LlamaAgent
from nearfar.device.gguf import read_header
from nearfar.device.llama.extra_buffers import prepare_library
from nearfar.protocols import (
    Agent,
    ContextOverflow,
    DeadlineExceeded,
    FinishReason,
    InvalidOutput,
    InvalidRequest,
    Message,
    PrivacyViolation,
    Sensitivity,
    Side,
    StepReply,
    StepRequest,
    TextDelta,
    ToolCall,
    ToolCalled,
    ToolChoice,
    ToolResult,
    ToolSpec,
    Unsupported,
    complete,
    stream,
)
from nearfar.protocols.confidence import LowestWindow
from nearfar.protocols.validation import check_arguments, parse_output

pytestmark = pytest.mark.anyio

HARD_SCHEMA = {
    "type": "object",
    "properties": {
        "code": {"type": "string", "pattern": r"^[A-Z]{2}-\d{3}$"},
        "note": {"type": "string", "maxLength": 20},
        "count": {"type": "integer", "minimum": 3, "maximum": 12},
        "kind": {"enum": ["a", "b"]},
    },
    "required": ["code", "note", "count", "kind"],
    "additionalProperties": False,
}
COUNT = ToolSpec(
    name="count",
    parameters={
        "type": "object",
        "properties": {"upto": {"type": "integer", "minimum": 10, "maximum": 99}},
        "required": ["upto"],
    },
)


async def test_schema_holds_at_the_highest_temperature() -> None:
    async with near_agent() as agent:
        for seed in range(30):
            reply = await complete(agent, ask(QUESTION, output_schema=HARD_SCHEMA, temperature=2.0, seed=seed))
            parse_output(reply.text, HARD_SCHEMA)
            assert reply.finished.reason is FinishReason.STOP


async def test_required_calls_are_valid_at_the_highest_temperature() -> None:
    async with near_agent() as agent:
        for seed in range(30):
            request = ask(QUESTION, tools=(COUNT,), tool_choice=ToolChoice.REQUIRED, temperature=2.0, seed=seed)
            reply = await complete(agent, request)
            assert reply.tool_calls
            for call in reply.tool_calls:
                check_arguments(call, (COUNT,))


async def test_large_max_length_is_no_problem() -> None:
    schema = {"type": "string", "maxLength": 100_000, "pattern": r"^\d+$"}
    async with near_agent() as agent:
        with pytest.raises(InvalidOutput):
            # Valid so far and cut by the limit, which is said instead of passing half of a JSON text on.
            await complete(agent, ask(QUESTION, output_schema=schema, temperature=2.0, seed=1, max_output_tokens=3))


@pytest.mark.parametrize("schema", [{"type": "string", "pattern": "(?=a)b"}, {"not": {"type": "string"}}])
async def test_schema_that_cannot_be_enforced_is_refused_and_harms_nobody(schema: dict[str, object]) -> None:
    async with near_agent() as agent:
        with pytest.raises(Unsupported):
            await complete(agent, ask(QUESTION, output_schema=schema))
        tool = ToolSpec(name="odd", parameters={"type": "object", "properties": {"x": schema}})
        with pytest.raises(Unsupported):
            await complete(agent, ask(QUESTION, tools=(tool,)))
        assert (await complete(agent, ask(QUESTION))).text
        assert (await agent.statistics()).active_steps == 0


async def test_tool_schemas_may_refer_to_their_own_definitions() -> None:
    parameters = {
        "type": "object",
        "properties": {"colour": {"$ref": "#/$defs/colour"}},
        "required": ["colour"],
        "$defs": {"colour": {"enum": ["red", "green"]}},
    }
    tools = (OPEN, ToolSpec(name="paint", parameters=parameters))
    async with near_agent() as agent:
        for seed in range(10):
            request = ask(QUESTION, tools=tools, tool_choice=ToolChoice.REQUIRED, temperature=2.0, seed=seed, max_output_tokens=400)
            for call in (await complete(agent, request)).tool_calls:
                check_arguments(call, tools)


async def test_call_cut_by_the_limit_is_dropped() -> None:
    async with near_agent() as agent:
        whole = await complete(agent, ask(QUESTION, tools=(OPEN,)))
        assert whole.tool_calls
        cut = await complete(agent, ask(QUESTION, tools=(OPEN,), max_output_tokens=whole.finished.usage.output_tokens - 3))
        assert (cut.finished.reason, cut.tool_calls, cut.text) == (FinishReason.LENGTH, (), "")


async def test_answer_or_call_where_both_are_allowed() -> None:
    number = {"type": "integer", "minimum": 0, "maximum": 9}
    schema = {"type": "object", "properties": {"n": number}, "required": ["n"], "additionalProperties": False}
    async with near_agent() as agent:
        replies = [
            await complete(agent, ask(QUESTION, tools=(OPEN,), output_schema=schema, temperature=temperature, seed=seed))
            for seed in range(5)
            for temperature in (0.0, 2.0)
        ]
        assert any(reply.tool_calls for reply in replies)
        for reply in replies:
            if not reply.tool_calls:
                parse_output(reply.text, schema)


async def test_conversation_with_a_tool_reuses_its_prefix() -> None:
    async with near_agent() as agent:
        question = Message.user(QUESTION)
        asked = await complete(agent, ask("", messages=(question,), tools=(OPEN,)))
        (call,) = asked.tool_calls
        result = Message.tool(ToolResult(call_id=call.id, name=call.name, content="Vera Falk"))
        answered = await complete(agent, ask("", messages=(question, asked.message, result), tools=(OPEN,)))
        assert answered.text == "Vera Falk"
        assert answered.finished.usage.cached_tokens >= asked.finished.usage.input_tokens
        # The same question in a second conversation finds its prefix although the first went on.
        again = await complete(agent, ask("", messages=(question,), tools=(OPEN,)))
        assert again.finished.usage.cached_tokens == again.finished.usage.input_tokens - 1
        assert again.tool_calls[0].arguments == call.arguments


async def test_reply_does_not_depend_on_the_cache() -> None:
    prompt = await long_prompt()
    async with near_agent() as agent:
        first, second = [await complete(agent, ask(prompt, max_output_tokens=60)) for _ in range(2)]
        assert first.finished.usage.cached_tokens == 0 < second.finished.usage.cached_tokens
        assert first.text == second.text


async def test_reply_of_a_model_with_a_sliding_window_does_not_depend_on_the_cache(tmp_path: Path) -> None:
    path = write_tiny_gguf(tmp_path / "window.gguf", TinyModel(context_length=256, window=16, end_bias=0.0))
    requests = [ask("count the rivers " * 8 + word, max_output_tokens=60) for word in ("here", "there", "now")]
    fresh = []
    for request in requests:
        async with await LlamaAgent.load(path, parallel=1) as agent:
            fresh.append((await complete(agent, request)).text)
    async with await LlamaAgent.load(path, parallel=1) as agent:
        replies = [await complete(agent, request) for request in requests]
    assert [reply.text for reply in replies] == fresh
    assert all(reply.finished.usage.cached_tokens > 16 for reply in replies[1:])


async def test_concurrent_steps_share_batches_and_equal_their_serial_outputs() -> None:
    prompts = [f"{await long_prompt()} {word}" for word in ("Mira", "Otto", "Ruth", "Emil")]
    requests = [ask(prompt, max_output_tokens=80) for prompt in prompts]
    async with near_agent() as agent:
        serial = [(await complete(agent, request)).text for request in requests]
    async with near_agent() as agent:
        together: list[StepReply] = await asyncio.gather(*(complete(agent, request) for request in requests))
        statistics = await agent.statistics()
    assert [reply.text for reply in together] == serial
    assert statistics.widest_batch == 4
    assert statistics.decode_calls < sum(reply.finished.usage.output_tokens for reply in together)


async def test_the_stop_sequence_that_ended_the_text_is_told() -> None:
    async with near_agent() as agent:
        whole = (await complete(agent, ask(QUESTION))).text
        stop = whole[len(whole) // 2 :][:3]
        reply = await complete(agent, ask(QUESTION, stop=("never written", stop)))
    assert (reply.text, reply.finished.stop) == (whole[: whole.index(stop)], stop)


async def test_prompts_are_counted_while_a_step_is_decoded() -> None:
    conversation = (
        Message.system("Be brief."),
        Message.user(QUESTION),
        Message.assistant("", (ToolCall(id="1", name="open", arguments={"title": "Port Alder", "section": "Mayor"}),)),
        Message.tool(ToolResult(call_id="1", name="open", content="Mira <|im_end|> Vale")),
    )
    asked = StepRequest(messages=conversation, tools=(OPEN,), max_output_tokens=1)
    async with near_agent() as agent, stream(agent, ask(await long_prompt())) as events:
        await anext(aiter(events))
        counted = await agent.count_tokens(asked)
        with pytest.raises(InvalidRequest):
            await agent.count_tokens(ask(" "))
        assert (await complete(agent, asked)).finished.usage.input_tokens == counted


async def test_more_steps_than_sequences_wait_for_their_turn() -> None:
    async with near_agent(parallel=2) as agent:
        replies = await asyncio.gather(*(complete(agent, ask(f"{QUESTION} {n}", max_output_tokens=8)) for n in range(7)))
        assert len(replies) == 7
        assert (await agent.statistics()).widest_batch == 2


async def test_stop_sequence_is_never_shown_even_in_part() -> None:
    prompt = await long_prompt()
    async with near_agent() as agent:
        text = (await complete(agent, ask(prompt, max_output_tokens=40))).text
        for length in (1, 2, 5, 9):
            stop = text[11 : 11 + length]
            async with stream(agent, ask(prompt, stop=(stop, "never to be seen"))) as events:
                shown = "".join([event.text async for event in events if isinstance(event, TextDelta)])
            assert shown == text[: text.index(stop)]


async def test_characters_made_of_several_tokens_arrive_whole() -> None:
    expected = "naïve 🙂 日本"
    async with near_agent() as agent:
        async with stream(agent, ask(QUESTION, output_schema={"const": expected})) as events:
            texts = [event.text async for event in events if isinstance(event, TextDelta)]
        assert json.loads("".join(texts)) == expected
        assert not any("\N{REPLACEMENT CHARACTER}" in text for text in texts)


async def test_half_a_character_is_dropped_at_the_limit() -> None:
    async with near_agent() as agent:
        with pytest.raises(InvalidOutput) as caught:
            await complete(agent, ask(QUESTION, output_schema={"const": "🙂"}, max_output_tokens=3))
        assert "cut" in str(caught.value)


async def test_seed_decides_the_text() -> None:
    prompt = await long_prompt()
    async with near_agent() as agent:
        texts = {
            seed: {(await complete(agent, ask(prompt, temperature=1.5, seed=seed, max_output_tokens=40))).text for _ in range(3)}
            for seed in range(4)
        }
        assert all(len(found) == 1 for found in texts.values())
        assert len(set().union(*texts.values())) > 1


async def test_prompt_longer_than_the_context_is_refused_with_the_numbers() -> None:
    async with near_agent(context_tokens=64) as agent:
        before = (await agent.statistics()).decode_calls
        with pytest.raises(ContextOverflow) as caught:
            await complete(agent, ask("What is the mayor of Port Alder? " * 20))
        assert "64" in str(caught.value)
        assert (await agent.statistics()).decode_calls == before


async def test_output_ends_where_the_context_ends() -> None:
    async with near_agent(context_tokens=64) as agent:
        reply = await complete(agent, ask(await long_prompt()))
        usage = reply.finished.usage
        assert reply.finished.reason is FinishReason.LENGTH
        assert usage.input_tokens + usage.output_tokens == 64


@pytest.mark.parametrize("prompt", ["", "  \n"])
async def test_empty_prompt_is_refused(prompt: str) -> None:
    async with near_agent() as agent:
        with pytest.raises(InvalidRequest):
            await complete(agent, ask(prompt))


async def test_confidence_falls_where_the_model_guesses() -> None:
    async with near_agent() as agent:
        sure = await complete(agent, ask(QUESTION, tools=(OPEN,)))
        guessing = await complete(agent, ask("Zxqv jk wq? Hmm", max_output_tokens=20))
        assert sure.finished.confidence is not None
        assert guessing.finished.confidence is not None
        assert sure.finished.confidence > guessing.finished.confidence


async def test_confidence_is_that_of_the_tokens_of_a_call_and_of_the_answer_after_its_result() -> None:
    async with near_agent() as agent:
        called = await complete(agent, ask(QUESTION, tools=(OPEN,)))
        (call,) = called.tool_calls
        result = Message.tool(ToolResult(call_id=call.id, name=call.name, content="Mira Falk"))
        conversation = (Message.user(QUESTION), Message.assistant("", (call,)), result)
        answered = await complete(agent, StepRequest(messages=conversation, tools=(OPEN,)))
    asked = f"<|bos|><|user|>{QUESTION}<|end|><|assistant|>"
    written = "<tool_call>" + json.dumps({"name": call.name, "arguments": dict(call.arguments)})
    assert called.finished.confidence == pytest.approx(lowest_window(asked, written), rel=1e-3)
    told = f"{asked}{written}</tool_call><|end|><|tool|>Mira Falk<|end|><|assistant|>"
    assert answered.finished.confidence == pytest.approx(lowest_window(told, f"{answered.text}<|end|>"), rel=1e-3)


def lowest_window(prompt: str, written: str) -> float:
    """The confidence of what the near model writes behind a prompt, by llama-cpp-python's own class in one pass."""
    prepare_library()
    model = Llama(str(NEAR), n_ctx=512, n_threads=1, logits_all=True, verbose=False)
    before, tokens = (model.tokenize(text.encode(), add_bos=False, special=True) for text in (prompt, written))
    model.eval([*before, *tokens])
    logits = model.scores[len(before) - 1 : len(before) + len(tokens) - 1].astype(np.float64)
    logs = logits[np.arange(len(tokens)), tokens] - np.log(np.exp(logits).sum(axis=1))
    width = min(4, len(tokens))
    return float(np.exp(np.convolve(logs, np.full(width, 1 / width), "valid").min()))


async def test_log_probabilities_are_those_of_the_confidence_and_of_the_best_alternatives() -> None:
    async with near_agent() as agent:
        prompt = await long_prompt()  # the end token counts towards the confidence, too, and is none of the text's
        reply = await complete(agent, ask(prompt, max_output_tokens=12, top_logprobs=3))
        drawn = await complete(agent, ask(prompt, max_output_tokens=40, top_logprobs=3, temperature=2.0, seed=3))
    tokens = reply.finished.logprobs
    assert "".join(token.token for token in tokens).strip() == reply.text.strip()
    assert all(token.token in [each.token for each in token.top[:2]] for token in tokens)  # the opener of a call may be likelier
    confidence = LowestWindow()
    for token in tokens:
        confidence.add(token.logprob)
    assert reply.finished.confidence == confidence.value
    assert any(token.token not in [each.token for each in token.top] for token in drawn.finished.logprobs)


async def test_penalties_and_samplers_change_what_is_written_and_the_grammar_still_holds() -> None:
    async with near_agent() as agent:
        prompt = await long_prompt()
        plain = await complete(agent, ask(prompt, max_output_tokens=60, top_logprobs=0))
        penalties = {"frequency_penalty": 2.0, "presence_penalty": 2.0}
        varied = await complete(agent, ask(prompt, max_output_tokens=60, top_logprobs=0, **penalties))
        for seed in range(5):
            samplers = {"top_p": 0.5, "top_k": 5, "min_p": 0.1, "frequency_penalty": 1.0}
            reply = await complete(agent, ask("Fill it in.", output_schema=HARD_SCHEMA, temperature=2.0, seed=seed, **samplers))
            parse_output(reply.text, HARD_SCHEMA)
    most_plain, most_varied = (max(Counter(token.token for token in each.finished.logprobs).values()) for each in (plain, varied))
    assert most_varied < most_plain / 2


async def test_far_llama_refuses_private_text(tmp_path: Path) -> None:
    async with await LlamaAgent.load(write_tiny_gguf(tmp_path / "tiny.gguf"), side=Side.FAR) as agent:
        assert agent.card.prices is not None
        assert agent.card.prices.is_free
        with pytest.raises(PrivacyViolation):
            await complete(agent, ask("hello"))
        public = ask("hello", sensitivity=Sensitivity.PUBLIC, max_output_tokens=4)
        assert (await complete(agent, public)).finished.usage.output_tokens


async def test_card_says_what_the_model_file_says(tmp_path: Path) -> None:
    layers = 3
    path = write_tiny_gguf(tmp_path / "small.gguf", TinyModel(context_length=96, world="toys", layers=layers))
    async with await LlamaAgent.load(path, parallel=3) as agent:
        card = agent.card
        assert (card.name, card.model, card.world) == ("small", "tiny", "toys")
        assert (card.limits.context_tokens, card.limits.concurrency) == (96, 3)
        assert card.prices is not None
        assert card.prices.input == 0
        assert (card.parameters, card.kv_bytes_per_token) == (read_header(path).parameters, 2 * 2 * layers * WIDTH)


@pytest.mark.parametrize("template", [None, "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}assistant:"])
async def test_any_model_calls_tools(tmp_path: Path, template: str | None) -> None:
    path = write_tiny_gguf(tmp_path / "plain.gguf", TinyModel(context_length=2048, template=template, tool_tokens=False))
    async with await LlamaAgent.load(path) as agent:
        for seed in range(10):
            request = ask("Count.", tools=(COUNT,), tool_choice=ToolChoice.REQUIRED, temperature=1.0, seed=seed, max_output_tokens=200)
            async with stream(agent, request) as events:
                got = [event async for event in events]
            calls = [event.call for event in got if isinstance(event, ToolCalled)]
            assert calls
            assert not any("tool_call" in event.text for event in got if isinstance(event, TextDelta))
            for call in calls:
                check_arguments(call, (COUNT,))


async def test_deadline_counts_while_a_step_waits() -> None:
    async with near_agent(parallel=1) as agent, anyio.create_task_group() as tasks:
        tasks.start_soon(_swallow, agent, await long_prompt())
        with pytest.raises(DeadlineExceeded):
            await complete(agent, ask(QUESTION, timeout=0.0001))
        tasks.cancel_scope.cancel()


async def _swallow(agent: Agent, prompt: str) -> None:
    await complete(agent, ask(prompt))
