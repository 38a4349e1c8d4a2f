"""Streams in the shape that the three APIs send them, and agents to read them."""

from collections.abc import Callable, Sequence
from typing import Any

from http_server import sse

from nearfar.cloud.anthropic import AnthropicDialect
from nearfar.cloud.dialect import Dialect
from nearfar.cloud.failures import RetryPolicy
from nearfar.cloud.gemini import GeminiDialect
from nearfar.cloud.openai import OpenAIDialect
from nearfar.cloud.provider import ProviderAgent, Timeouts
from nearfar.cloud.responses import ResponsesDialect
from nearfar.protocols import Message, StepRequest, ToolSpec
from nearfar.protocols.secrets import GivenKey
from nearfar.protocols.steps import Sensitivity

Chunk = dict[str, Any]
KEY = "sk-test-0123456789abcdef"
DIALECTS: dict[str, Dialect] = {
    "openai": OpenAIDialect(),
    "responses": ResponsesDialect(),
    "anthropic": AnthropicDialect(),
    "gemini": GeminiDialect(),
}
WEATHER = ToolSpec(
    name="weather",
    description="Today's weather",
    parameters={"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
)


def agent_at(base_url: str, dialect: Dialect | str = "openai", *, calls: int = 1, idle: float = 30.0, key: str = KEY) -> ProviderAgent:
    """An agent that retries at once."""
    spoken = DIALECTS[dialect] if isinstance(dialect, str) else dialect
    return ProviderAgent(
        spoken,
        "model-1",
        key=GivenKey(key),
        base_url=base_url,
        timeouts=Timeouts(idle=idle),
        retry=RetryPolicy(calls=calls, first_delay=0.0),
    )


def asking(text: str = "hello", **fields: object) -> StepRequest:
    """A public request."""
    return StepRequest.model_validate({"messages": (Message.user(text),), "sensitivity": Sensitivity.PUBLIC, **fields})


def openai_chunk(delta: Chunk, finish: str | None = None, **fields: object) -> Chunk:
    choice = {"index": 0, "delta": delta, "finish_reason": finish}
    return {"id": "c-1", "object": "chat.completion.chunk", "model": "model-1-0613", "choices": [choice], **fields}


def openai_text(*texts: str, finish: str = "stop", read: int = 20, written: int = 5) -> str:
    cached = {"cached_tokens": min(16, read)}
    usage = {"prompt_tokens": read, "completion_tokens": written, "prompt_tokens_details": cached}
    chunks = [openai_chunk({"role": "assistant", "content": ""}), *(openai_chunk({"content": text}) for text in texts)]
    return sse(*chunks, openai_chunk({}, finish), {"model": "model-1-0613", "choices": [], "usage": usage}, "[DONE]")


def openai_call(*pieces: str) -> str:
    first = {"index": 0, "id": "call_a", "type": "function", "function": {"name": "weather", "arguments": ""}}
    deltas = [{"tool_calls": [first]}] + [{"tool_calls": [{"index": 0, "function": {"arguments": piece}}]} for piece in pieces]
    return sse(*(openai_chunk(delta) for delta in deltas), openai_chunk({}, "tool_calls"), "[DONE]")


def anthropic_events(*events: Chunk) -> str:
    return "".join(sse(event, event=str(event["type"])) for event in events)


def anthropic_start(read: int = 20) -> Chunk:
    usage = {"input_tokens": read - 18, "cache_read_input_tokens": 16, "cache_creation_input_tokens": 2, "output_tokens": 1}
    return {"type": "message_start", "message": {"id": "m-1", "model": "model-1-20250929", "usage": usage}}


def anthropic_end(reason: str, written: int = 5) -> tuple[Chunk, Chunk]:
    delta = {"type": "message_delta", "delta": {"stop_reason": reason, "stop_sequence": None}, "usage": {"output_tokens": written}}
    return delta, {"type": "message_stop"}


def anthropic_block(index: int, block: Chunk, *deltas: Chunk) -> list[Chunk]:
    return [
        {"type": "content_block_start", "index": index, "content_block": block},
        *({"type": "content_block_delta", "index": index, "delta": delta} for delta in deltas),
        {"type": "content_block_stop", "index": index},
    ]


def anthropic_text(*texts: str, finish: str = "end_turn", read: int = 20, written: int = 5) -> str:
    block = anthropic_block(0, {"type": "text", "text": ""}, *({"type": "text_delta", "text": text} for text in texts))
    return anthropic_events(anthropic_start(read), {"type": "ping"}, *block, *anthropic_end(finish, written))


def anthropic_call(*pieces: str) -> str:
    thinking = anthropic_block(
        0,
        {"type": "thinking", "thinking": "", "signature": ""},
        {"type": "thinking_delta", "thinking": "Which city? "},
        {"type": "thinking_delta", "thinking": "Paris."},
        {"type": "signature_delta", "signature": "c2lnbmVk"},
    )
    call = anthropic_block(
        1,
        {"type": "tool_use", "id": "toolu_1", "name": "weather", "input": {}},
        *({"type": "input_json_delta", "partial_json": piece} for piece in pieces),
    )
    return anthropic_events(anthropic_start(), *thinking, *call, *anthropic_end("tool_use"))


def gemini_chunk(*parts: Chunk, finish: str | None = None, read: int = 20, written: int = 5) -> Chunk:
    thoughts = min(2, written - 1)
    usage = {
        "promptTokenCount": read,
        "cachedContentTokenCount": 16,
        "candidatesTokenCount": written - thoughts,
        "thoughtsTokenCount": thoughts,
    }
    candidate: Chunk = {"index": 0, "content": {"role": "model", "parts": list(parts)}}
    if finish:
        candidate["finishReason"] = finish
    return {"candidates": [candidate], "usageMetadata": usage, "modelVersion": "model-1-001"}


def gemini_text(*texts: str, finish: str = "STOP", read: int = 20, written: int = 5) -> str:
    thought = gemini_chunk({"text": "Let me see.", "thought": True})
    return sse(
        thought, *(gemini_chunk({"text": text}) for text in texts), gemini_chunk({"text": ""}, finish=finish, read=read, written=written)
    )


def gemini_call() -> str:
    part = {"functionCall": {"name": "weather", "args": {"city": "Paris"}, "id": "f-1"}, "thoughtSignature": "c2lnbmVk"}
    return sse(gemini_chunk(part, finish="STOP"))


_RESPONSE: Chunk = {
    "id": "resp_1",
    "object": "response",
    "created_at": 1790000000,
    "model": "model-1-2026-04-23",
    "error": None,
    "incomplete_details": None,
    "instructions": None,
    "metadata": {},
    "output": [],
    "parallel_tool_calls": True,
    "temperature": 1.0,
    "tool_choice": "auto",
    "tools": [],
    "top_p": 1.0,
}


def responses_reasoning(number: int = 0) -> Chunk:
    return {"id": f"rs_{number}", "type": "reasoning", "summary": [], "encrypted_content": f"gAAAAA{number}"}


def responses_message(number: int, text: str, **fields: object) -> Chunk:
    part = {"type": "output_text", "text": text, "annotations": [], "logprobs": []}
    return {"id": f"msg_{number}", "type": "message", "role": "assistant", "status": "completed", "content": [part], **fields}


def responses_function(number: int, arguments: str, name: str = "weather") -> Chunk:
    known = {"id": f"fc_{number}", "type": "function_call", "status": "completed"}
    return {**known, "call_id": f"call_{number}", "name": name, "arguments": arguments}


def responses_stream(*items: tuple[Chunk, Sequence[str]], finish: str = "stop", read: int = 20, written: int = 5, **fields: object) -> str:
    """The events of a response in OpenAI's order; each item comes with the pieces of its text or of its arguments."""
    usage = {
        "input_tokens": read,
        "input_tokens_details": {"cached_tokens": min(16, read), "cache_write_tokens": 0},
        "output_tokens": written,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": read + written,
    }
    begun = _RESPONSE | {"status": "in_progress"}
    status = "completed" if finish == "stop" else "incomplete"
    details = None if finish == "stop" else {"reason": finish}
    ended = begun | {"status": status, "incomplete_details": details, "output": [item for item, _ in items], "usage": usage, **fields}
    events: list[Chunk] = [{"type": "response.created", "response": begun}, {"type": "response.in_progress", "response": begun}]
    for index, (item, pieces) in enumerate(items):
        events += [event | {"output_index": index} for event in _item_events(item, pieces)]
    events.append({"type": f"response.{ended['status']}", "response": ended})
    return "".join(sse(event | {"sequence_number": number}, event=event["type"]) for number, event in enumerate(events))


def _item_events(item: Chunk, pieces: Sequence[str]) -> list[Chunk]:
    done = {"type": "response.output_item.done", "item": item}
    if item["type"] == "reasoning":
        return [{"type": "response.output_item.added", "item": item | {"encrypted_content": "gAAA"}}, done]
    place = {"item_id": item["id"]}
    if item["type"] == "function_call":
        kind, added = "response.function_call_arguments", item | {"arguments": "", "status": "in_progress"}
        ends: list[Chunk] = [{"type": f"{kind}.done", **place, "arguments": item["arguments"]}]
        begins: list[Chunk] = []
    else:
        kind, added = "response.output_text", item | {"content": [], "status": "in_progress"}
        part, empty = item["content"][0], {"type": "output_text", "text": "", "annotations": [], "logprobs": []}
        if part["type"] == "refusal":
            ends = [{"type": "response.refusal.done", **place, "content_index": 0, "refusal": part["refusal"]}]
            return [{"type": "response.output_item.added", "item": added}, *ends, done]
        place |= {"content_index": 0}
        begins = [{"type": "response.content_part.added", **place, "part": empty}]
        ends = [
            {"type": f"{kind}.done", **place, "text": part["text"], "logprobs": []},
            {"type": "response.content_part.done", **place, "part": part},
        ]
    deltas: list[Chunk] = [{"type": f"{kind}.delta", **place, "delta": piece} for piece in pieces]
    if begins:
        deltas = [delta | {"logprobs": []} for delta in deltas]
    return [{"type": "response.output_item.added", "item": added}, *begins, *deltas, *ends, done]


def responses_text(*texts: str, finish: str = "stop", read: int = 20, written: int = 5) -> str:
    items = ((responses_reasoning(), ()), (responses_message(1, "".join(texts)), texts))
    return responses_stream(*items, finish=finish, read=read, written=written)


def responses_call(*pieces: str) -> str:
    return responses_stream((responses_reasoning(), ()), (responses_function(1, "".join(pieces)), pieces))


TEXTS: dict[str, Callable[..., str]] = {
    "openai": openai_text,
    "responses": responses_text,
    "anthropic": anthropic_text,
    "gemini": gemini_text,
}
