"""LangChain's standard tests of a chat model, on `ChatNearfar` over a `Hybrid` of scripted agents, and its prebuilt agent.

Runs in the environment of the judge `langchain`, started by `test_langchain.py`: the suite brings plugins of pytest that ours do without.
"""

import base64
import json
import re
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from langchain.agents import create_agent
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, HumanMessage
from langchain_core.tools import tool
from langchain_tests.integration_tests import ChatModelIntegrationTests
from langchain_tests.unit_tests import ChatModelUnitTests
from pydantic import BaseModel

from nearfar import Capabilities, ChatNearfar, Hybrid, ScriptedAgent, StepRequest, ToolCall, ToolChoice
from nearfar.protocols.fakes import Reply

PNG = base64.b64decode("iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg==")
PDF = b"%PDF-1.4\n%%EOF\n"
QUOTED = re.compile("'([^']+)'")
NUMBER = re.compile(r"\((\d+)\)")


def reply(request: StepRequest) -> Reply:
    """Call the first tool until it has been called, with arguments that fit; then answer, as JSON where that is asked for."""
    last = request.messages[-1]
    is_wanted = request.tool_choice is not ToolChoice.NONE and (request.tool_choice is ToolChoice.REQUIRED or last.role == "user")
    if request.tools and is_wanted:
        schema = request.tools[0].parameters
        return ToolCall(id=f"call_{len(request.messages)}", name=request.tools[0].name, arguments=filled(schema, schema, last.text))
    if request.output_schema is not None:
        return json.dumps(filled(request.output_schema, request.output_schema, last.text))
    return ["Hello ", "there, ", "friend."]


def filled(schema: dict[str, Any], root: dict[str, Any], prompt: str) -> Any:  # noqa: ANN401 - any JSON value
    """A value that fits a schema: what the prompt names, where it names anything."""
    if "$ref" in schema:
        return filled(root["$defs"][schema["$ref"].rpartition("/")[2]], root, prompt)
    for key in ("anyOf", "allOf"):
        if key in schema:
            return filled(schema[key][0], root, prompt)
    if "enum" in schema:
        return schema["enum"][0]
    if schema.get("type") == "object":
        return {name: filled(part, root, prompt) for name, part in schema.get("properties", {}).items()}
    if schema.get("type") in ("integer", "number"):
        return int(found[1]) if (found := NUMBER.search(prompt)) else 3
    return found[1] if (found := QUOTED.search(prompt)) else "a text"


class Claims:
    """The claims that both suites hold `ChatNearfar` to."""

    supports_image_inputs = supports_pdf_inputs = has_tool_calling = has_tool_choice = has_structured_output = supports_json_mode = True
    returns_usage_metadata = supports_model_override = True
    chat_model_class = ChatNearfar
    model_override_value = "second"
    supported_usage_metadata_details = {
        "invoke": ["cache_read_input", "cache_creation_input", "reasoning_output"],
        "stream": ["cache_read_input", "cache_creation_input", "reasoning_output"],
    }

    @pytest.fixture(autouse=True)
    def hybrid(self) -> Iterator[None]:
        """A `Hybrid` for each test, closed behind it."""
        claimed = Capabilities(tools=True, json_schema=True, cancellation=True, images=True, files=True)
        first, second = (
            ScriptedAgent(reply, name=name, model=f"{name}-model", confidence=0.9, capabilities=claimed) for name in ("first", "second")
        )
        with Hybrid(near=first, agents={"second": second}) as self._hybrid:
            yield

    @pytest.fixture(autouse=True)
    def files(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """What the suite would fetch from the web: an image and a document."""
        monkeypatch.setattr("httpx.get", lambda url, **_: SimpleNamespace(content=PDF if url.endswith(".pdf") else PNG))

    @property
    def chat_model_params(self) -> dict[str, Any]:
        return {"hybrid": self._hybrid}

    def invoke_with_cache_read_input(self, *, stream: bool = False) -> AIMessage:
        return self._said(stream)

    def invoke_with_cache_creation_input(self, *, stream: bool = False) -> AIMessage:
        return self._said(stream)

    def invoke_with_reasoning_output(self, *, stream: bool = False) -> AIMessage:
        return self._said(stream)

    def _said(self, stream: bool) -> AIMessage:
        model: BaseChatModel = ChatNearfar(hybrid=self._hybrid)
        if not stream:
            return model.invoke("Hello")
        first, *rest = model.stream("Hello")
        return sum(rest, start=first)


class TestUnits(Claims, ChatModelUnitTests):
    """Without a step."""


class TestIntegration(Claims, ChatModelIntegrationTests):
    """With steps of scripted agents."""


@tool
def open(title: str, section: str) -> str:
    """Open a section of a passage about a person, company, city or country."""
    return {("Ines Falk", "employer"): "Orbix Labs", ("Orbix Labs", "city"): "Port Selby"}.get((title, section), "not stated")


class Joke(BaseModel):
    """A joke."""

    setup: str
    punchline: str


async def test_the_prebuilt_agent_calls_tools_and_then_answers_by_a_schema() -> None:
    scripted = ScriptedAgent(reply)
    async with Hybrid(near=scripted) as hybrid:
        agent = create_agent(ChatNearfar(hybrid=hybrid), [open], response_format=Joke)
        told = await agent.ainvoke({"messages": [HumanMessage("Look it up.")]})
    assert told["structured_response"] == Joke(setup="a text", punchline="a text")
    assert [bool(request.tools) for request in scripted.requests] == [True, True]


async def test_the_prebuilt_agent_answers_with_the_small_model_on_this_device() -> None:
    pytest.importorskip("llama_cpp")
    async with Hybrid(near="near") as hybrid:
        agent = create_agent(ChatNearfar(hybrid=hybrid), [open])
        told = await agent.ainvoke({"messages": [HumanMessage("What is the city of the employer of Ines Falk?")]})
    assert [message.type for message in told["messages"]] == ["human", "ai", "tool", "ai", "tool", "ai"]
    assert "Port Selby" in told["messages"][-1].text
    assert {message.response_metadata["side"] for message in told["messages"] if message.type == "ai"} == {"near"}
