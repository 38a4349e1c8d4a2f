"""The tools, resources and prompts that the conformance suite calls, added to Nearfar's own server and served by it.

`python conformance_fixtures.py` serves them, and prints the URL.
"""

import struct
import sys
import zlib
from collections.abc import Callable
from typing import Any

import anyio
from mcp import MCPError
from mcp.server.mcpserver import Audio, Context, Image, MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp.server.mcpserver.prompts.base import UserMessage
from mcp_types import (
    MISSING_REQUIRED_CLIENT_CAPABILITY,
    Completion,
    CreateMessageRequest,
    CreateMessageRequestParams,
    ElicitRequest,
    ElicitRequestFormParams,
    ElicitResult,
    EmbeddedResource,
    InputRequiredResult,
    ListRootsRequest,
    SamplingMessage,
    TextContent,
    TextResourceContents,
)

from nearfar import Hybrid, ScriptedAgent
from nearfar.orchestrator.compose.hub import ServeConfig
from nearfar.orchestrator.serve import serving_mcp
from nearfar.orchestrator.serve.mcp_server import mcp_server
from nearfar.protocols.access import Access


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


PNG = b"\x89PNG\r\n\x1a\n" + b"".join(
    [
        _chunk(b"IHDR", struct.pack(">IIBBBBB", 1, 1, 8, 2, 0, 0, 0)),
        _chunk(b"IDAT", zlib.compress(b"\0\xff\0\0")),
        _chunk(b"IEND", b""),
    ]
)
WAV = b"RIFF" + struct.pack("<I", 36) + b"WAVEfmt " + struct.pack("<IHHIIHH", 16, 1, 1, 8000, 8000, 1, 8) + b"data" + struct.pack("<I", 0)


def asked(message: str, field: str, kind: str = "string") -> ElicitRequest:
    """Return a question for one field."""
    schema: Any = {"type": "object", "properties": {field: {"type": kind}}, "required": [field]}
    return ElicitRequest(params=ElicitRequestFormParams(message=message, requested_schema=schema))


def sampled(text: str, tokens: int) -> CreateMessageRequest:
    """Return a request for a text of the client's model."""
    message = SamplingMessage(role="user", content=TextContent(type="text", text=text))
    return CreateMessageRequest(params=CreateMessageRequestParams(messages=[message], max_tokens=tokens))


def field_of(context: Context, key: str, field: str) -> Any:  # noqa: ANN401 - any value of a form
    """Return what the user has typed into a field; None if that is not there."""
    answer = (context.input_responses or {}).get(key)
    return (answer.content or {}).get(field) if isinstance(answer, ElicitResult) and answer.action == "accept" else None


def add_content(server: MCPServer) -> None:
    """Add the tools whose results are of several kinds."""

    @server.tool(structured_output=False)
    def test_simple_text() -> str:
        """Return a text."""
        return "This is a simple text response for testing."

    @server.tool(structured_output=False)
    def test_image_content() -> Image:
        """Return an image."""
        return Image(data=PNG, format="png")

    @server.tool(structured_output=False)
    def test_audio_content() -> Audio:
        """Return a sound."""
        return Audio(data=WAV, format="wav")

    @server.tool(structured_output=False)
    def test_embedded_resource() -> EmbeddedResource:
        """Return a resource."""
        return embedded("test://embedded-resource", "text/plain", "This is an embedded resource content.")

    @server.tool(structured_output=False)
    def test_multiple_content_types() -> list[Any]:
        """Return a text, an image and a resource."""
        resource = embedded("test://mixed-content-resource", "application/json", '{"test":"data","value":123}')
        return ["Multiple content types test:", Image(data=PNG, format="png"), resource]

    @server.tool(structured_output=False)
    def test_error_handling() -> str:
        """Fail."""
        raise ToolError("This tool intentionally returns an error for testing")

    @server.tool(structured_output=False)
    async def test_tool_with_progress(context: Context) -> str:
        """Report progress."""
        for done in (0, 50, 100):
            await context.report_progress(done, 100)
        return "done"

    @server.tool(structured_output=False)
    def test_logging_tool() -> str:
        """Write no log to a client that did not ask for it."""
        return "nothing is logged"


def embedded(uri: str, mime_type: str, text: str) -> EmbeddedResource:
    """Return a resource as a block of a result."""
    return EmbeddedResource(type="resource", resource=TextResourceContents(uri=uri, mime_type=mime_type, text=text))


def add_questions(server: MCPServer) -> None:
    """Add the tools that ask back."""
    answers: dict[str, Callable[[Context], str | InputRequiredResult]] = {
        "elicitation": _elicitation,
        "sampling": _sampling,
        "list_roots": _list_roots,
        "request_state": _request_state,
        "multiple_inputs": _multiple_inputs,
        "multi_round": _multi_round,
        "tampered_state": _request_state,
        "capabilities": _capabilities,
    }
    for name, answer in answers.items():
        add_question(server, f"test_input_required_result_{name}", answer)
    add_question(server, "test_streaming_elicitation", _elicitation)
    add_question(server, "test_missing_capability", _missing_capability)


def add_question(server: MCPServer, name: str, answer: Callable[[Context], str | InputRequiredResult]) -> None:
    """Add a tool that asks."""

    def ask(context: Context) -> str | InputRequiredResult:
        return answer(context)

    server.add_tool(ask, name=name, description="Ask back.", structured_output=False)


def _elicitation(context: Context) -> str | InputRequiredResult:
    name = field_of(context, "user_name", "name")
    if not isinstance(name, str):
        return InputRequiredResult(input_requests={"user_name": asked("What is your name?", "name")})
    return f"Hello, {name}!"


def _sampling(context: Context) -> str | InputRequiredResult:
    given = (context.input_responses or {}).get("capital_question")
    if given is None:
        return InputRequiredResult(input_requests={"capital_question": sampled("What is the capital of France?", 100)})
    return given.model_dump_json()


def _list_roots(context: Context) -> str | InputRequiredResult:
    given = (context.input_responses or {}).get("client_roots")
    if given is None:
        return InputRequiredResult(input_requests={"client_roots": ListRootsRequest()})
    return given.model_dump_json()


def _request_state(context: Context) -> str | InputRequiredResult:
    if context.request_state == "begun" and context.input_responses:
        return "state-ok"
    return InputRequiredResult(input_requests={"confirm": asked("Please confirm", "ok", "boolean")}, request_state="begun")


def _multiple_inputs(context: Context) -> str | InputRequiredResult:
    wanted: dict[str, Any] = {
        "user_name": asked("What is your name?", "name"),
        "greeting": sampled("Generate a greeting", 50),
        "client_roots": ListRootsRequest(),
    }
    if context.request_state == "begun" and wanted.keys() <= (context.input_responses or {}).keys():
        return "all is there"
    return InputRequiredResult(input_requests=wanted, request_state="begun")


def _multi_round(context: Context) -> str | InputRequiredResult:
    name, color = field_of(context, "step1", "name"), field_of(context, "step2", "color")
    if context.request_state is not None and context.request_state.startswith("name ") and color:
        return f"{context.request_state.removeprefix('name ')} likes {color}"
    if context.request_state == "begun" and name:
        question = asked("Step 2: What is your favorite color?", "color")
        return InputRequiredResult(input_requests={"step2": question}, request_state=f"name {name}")
    return InputRequiredResult(input_requests={"step1": asked("Step 1: What is your name?", "name")}, request_state="begun")


def _capabilities(context: Context) -> str | InputRequiredResult:
    can = context.client_capabilities
    requests: dict[str, Any] = {}
    if can is not None and can.elicitation is not None:
        requests["user_name"] = asked("What is your name?", "name")
    if can is not None and can.sampling is not None:
        requests["greeting"] = sampled("Generate a greeting", 50)
    return InputRequiredResult(input_requests=requests) if requests else "there is nothing to ask"


def _missing_capability(context: Context) -> str:
    can = context.client_capabilities
    if can is None or can.sampling is None:
        data: dict[str, Any] = {"requiredCapabilities": {"sampling": {}}}
        raise MCPError(code=MISSING_REQUIRED_CLIENT_CAPABILITY, message="sampling is needed", data=data)
    return "it is there"


def add_resources(server: MCPServer) -> None:
    """Add the resources."""

    @server.resource("test://static-text", mime_type="text/plain")
    def static_text() -> str:
        return "This is the content of the static text resource."

    @server.resource("test://static-binary", mime_type="image/png")
    def static_binary() -> bytes:
        return PNG

    @server.resource("test://template/{id}/data", mime_type="application/json")
    def template(id: str) -> dict[str, Any]:
        return {"id": id, "templateTest": True, "data": f"Data for ID: {id}"}


def add_prompts(server: MCPServer) -> None:
    """Add the prompts, and completions of their arguments."""

    @server.prompt()
    def test_simple_prompt() -> str:
        """Ask simply."""
        return "This is a simple prompt for testing."

    @server.prompt()
    def test_prompt_with_arguments(arg1: str, arg2: str) -> str:
        """Ask with arguments."""
        return f"Prompt with arguments: arg1='{arg1}', arg2='{arg2}'"

    @server.prompt()
    def test_prompt_with_embedded_resource(resourceUri: str) -> list[Any]:
        """Ask about a resource."""
        resource = embedded(resourceUri, "text/plain", "Embedded resource content for testing.")
        return [UserMessage(resource), UserMessage("Please process the embedded resource above.")]

    @server.prompt()
    def test_prompt_with_image() -> list[Any]:
        """Ask about an image."""
        return [UserMessage(Image(data=PNG, format="png").to_image_content()), UserMessage("Please analyze the image above.")]

    @server.prompt()
    def test_input_required_result_prompt(context: Context) -> Any:  # noqa: ANN401 - a text, or a question
        """Ask the user first."""
        given = field_of(context, "user_context", "context")
        question = asked("What context should the prompt use?", "context")
        return InputRequiredResult(input_requests={"user_context": question}) if given is None else f"In the context of {given}: begin."

    async def complete(*_: object) -> Completion:
        return Completion(values=["paris", "park"])

    decorate: Any = server.completion
    decorate()(complete)


async def main() -> None:
    """Serve until standard input is closed."""
    async with Hybrid(near=ScriptedAgent(lambda _: "a scripted answer")) as hybrid:
        server = mcp_server(hybrid)
        for add in (add_content, add_questions, add_resources, add_prompts):
            add(server)
        async with serving_mcp(server, ServeConfig(address="127.0.0.1:0"), Access(None)) as url:
            sys.stdout.write(f"{url}\n")
            sys.stdout.flush()
            await anyio.to_thread.run_sync(sys.stdin.read)


if __name__ == "__main__":
    anyio.run(main)
