"""Every body that a dialect writes is one that the provider's own SDK could have written, by the SDK's types."""

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sdk import Sdk
from step_requests import Parted, anthropic_parts, chat_parts, gemini_parts, requests, responses_parts

from nearfar.cloud.anthropic import AnthropicDialect
from nearfar.cloud.dialect import Dialect, claude_traits
from nearfar.cloud.gemini import GeminiDialect
from nearfar.cloud.openai import OpenAIDialect
from nearfar.cloud.responses import ResponsesDialect
from nearfar.protocols import Effort, Message, StepRequest, ToolSpec

Body = dict[str, Any]
Judges = Callable[[str], Sdk]


@dataclass(frozen=True)
class Api:
    """One provider API, and who judges it."""

    sdk: str
    dialects: tuple[Dialect, ...]
    models: tuple[str, ...]
    parted: Parted


APIS = {
    "chat": Api(
        "openai",
        (OpenAIDialect(), OpenAIDialect(hosted=False), OpenAIDialect(logprobs=True, seed=True), OpenAIDialect(effort=Effort.HIGH)),
        ("gpt-4o", "gpt-5", "gpt-5.5", "o3", "gpt-oss-120b", "qwen3"),
        chat_parts,
    ),
    "responses": Api(
        "openai", (ResponsesDialect(), ResponsesDialect(reasoning=False)), ("gpt-4o", "gpt-5-pro", "gpt-5.5"), responses_parts
    ),
    "messages": Api(
        "anthropic",
        (AnthropicDialect(), AnthropicDialect(effort=Effort.LOW)),
        ("claude-3-5-haiku-latest", "claude-opus-4-5", "claude-sonnet-4-6", "claude-opus-4-8", "claude-opus-5", "claude-opus-5-5"),
        anthropic_parts,
    ),
    "contents": Api("google-genai", (GeminiDialect(),), ("gemini-2.0-flash", "gemini-2.5-pro", "gemini-3-pro-preview"), gemini_parts),
}
ASKING = StepRequest(
    messages=(Message.system("Be brief."), Message.user("Weather?")), tools=(ToolSpec(name="weather"),), output_schema={"type": "object"}
)
MISTAKES: dict[str, tuple[Callable[[Body], object], ...]] = {
    "chat": (
        lambda body: body.update(max_output_tokens=9),
        lambda body: body.update(temperature="0.5"),
        lambda body: body["messages"][1].update(text="x"),
        lambda body: body["tools"][0].update(strict=True),
        lambda body: body.pop("messages"),
    ),
    "responses": (
        lambda body: body.update(max_tokens=9),
        lambda body: body.update(include=["reasoning"]),
        lambda body: body["input"][1].update(role="tool"),
        lambda body: body["tools"].append({"type": "function", "function": {"name": "x"}}),
        lambda body: body["text"]["format"].pop("name"),
    ),
    "messages": (
        lambda body: body.update(stop=["x"]),
        lambda body: body["messages"][0].update(role="system "),
        lambda body: body["messages"][0]["content"][0].update(value="x"),
        lambda body: body["tools"][0].update(parameters={}),
        lambda body: body.pop("max_tokens"),
    ),
    "contents": (
        lambda body: body.update(model="gemini-3"),
        lambda body: body["generationConfig"].update(max_output_tokens=9),
        lambda body: body["contents"][0]["parts"][0].update(signature="c2ln"),
        lambda body: body["tools"][0]["functionDeclarations"][0].update(input_schema={}),
        lambda body: body["toolConfig"]["functionCallingConfig"].update(mode="SOMETIMES"),
    ),
}


def faults(judge: Sdk, kind: str, body: Body, model: str) -> list[str]:
    if kind == "messages" and claude_traits(model).temperature:
        body = {name: value for name, value in body.items() if name != "temperature"}  # the API takes it from these, the SDK no more
    return judge.faults(kind, body)


@pytest.mark.parametrize("kind", APIS)
def test_every_body_is_valid_by_the_providers_own_types(kind: str, sdk: Judges) -> None:
    api = APIS[kind]
    judge = sdk(api.sdk)

    @given(requests(api.parted), st.sampled_from(api.dialects), st.sampled_from(api.models), st.none() | st.integers(16, 99))
    def holds(request: StepRequest, dialect: Dialect, model: str, limit: int | None) -> None:
        body = dialect.body(request, model, max_output_tokens=limit)
        assert faults(judge, kind, body, model) == []

    holds()


@pytest.mark.parametrize("kind", APIS)
@pytest.mark.parametrize("number", range(5))
def test_a_body_with_a_mistake_is_refused(kind: str, number: int, sdk: Judges) -> None:
    api = APIS[kind]
    body = copy.deepcopy(api.dialects[0].body(ASKING, api.models[-1], max_output_tokens=16))
    assert faults(sdk(api.sdk), kind, body, api.models[-1]) == []
    MISTAKES[kind][number](body)
    assert faults(sdk(api.sdk), kind, body, api.models[-1])
