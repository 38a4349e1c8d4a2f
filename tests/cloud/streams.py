"""Streams in the shape that the three APIs send them, and agents to read them."""

from collections.abc import Callable
from typing import Any

from http_server import sse

from nearfar.cloud.anthropic import AnthropicDialect
from nearfar.cloud.dialect import Dialect
from nearfar.cloud.gemini import GeminiDialect
from nearfar.cloud.keys import GivenKey
from nearfar.cloud.openai import OpenAIDialect
from nearfar.cloud.provider import ProviderAgent, Timeouts
from nearfar.cloud.retry import RetryPolicy
from nearfar.protocols import Message, StepRequest, ToolSpec
from nearfar.protocols.messages import Sensitivity

Chunk = dict[str, Any]
KEY = "sk-test-0123456789abcdef"
DIALECTS: dict[str, Dialect] = {"openai": OpenAIDialect(), "anthropic": AnthropicDialect(), "gemini": GeminiDialect()}
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


TEXTS: dict[str, Callable[..., str]] = {"openai": openai_text, "anthropic": anthropic_text, "gemini": gemini_text}
