"""Goes through one round of tool calls with a provider's own SDK, whose connection is a recording.

It reads a JSON object per line, `{"type": API, "value": {"stream": EVENTS, "result": TEXT}}`: what the provider streams, and what each tool
that it calls then returns. It answers each with what the SDK makes of the stream, and with the body in which the SDK, used as its makers
document, sends turn and results back. Run as `python -I sdk_client.py`, inside an environment that has nothing but this SDK.
"""

import json
import sys
from collections.abc import Callable
from importlib import import_module
from typing import Any

Round = dict[str, Any]
_SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
_WEATHER = {"name": "weather", "description": "Today's weather"}
_QUESTION = "Weather?"


def main() -> None:
    """Answer every line."""
    for line in sys.stdin:
        asked = json.loads(line)
        sys.stdout.write(json.dumps([_APIS[asked["type"]](asked["value"])]) + "\n")
        sys.stdout.flush()


class Recording:
    """A connection on which every call is answered by the same events."""

    def __init__(self, events: str) -> None:
        self.bodies: list[Any] = []
        self._events = events.encode()

    def client(self) -> Any:  # noqa: ANN401  # of a package that only the environments have
        """What the SDKs take for an HTTP client."""
        httpx = import_module("httpx2")

        def answer(request: Any) -> Any:  # noqa: ANN401
            self.bodies.append(json.loads(request.content))
            return httpx.Response(200, headers={"content-type": "text/event-stream"}, content=self._events)

        return httpx.Client(transport=httpx.MockTransport(answer))


def messages(asked: Round) -> Round:
    """Anthropic: the content of the message goes back as it is."""
    recording = Recording(asked["stream"])
    client = import_module("anthropic").Anthropic(api_key="x", http_client=recording.client())
    talk: list[Any] = [{"role": "user", "content": _QUESTION}]
    known = {"model": "m", "max_tokens": 99, "tools": [{**_WEATHER, "input_schema": _SCHEMA}]}
    with client.messages.stream(messages=talk, **known) as stream:
        final = stream.get_final_message()
    calls = [block for block in final.content if block.type == "tool_use"]
    results = [{"type": "tool_result", "tool_use_id": call.id, "content": asked["result"]} for call in calls]
    talk += [{"role": "assistant", "content": final.content}, {"role": "user", "content": results}]
    client.messages.create(messages=talk, stream=True, **known).close()
    text = "".join(block.text for block in final.content if block.type == "text")
    usage = final.usage
    return {
        "text": text,
        "calls": [[call.id, call.name, call.input] for call in calls],
        "usage": [usage.input_tokens + usage.cache_read_input_tokens, usage.output_tokens, usage.cache_read_input_tokens],
        "body": recording.bodies[1],
    }


def responses(asked: Round) -> Round:
    """OpenAI's responses: the output's items go back as they are."""
    recording = Recording(asked["stream"])
    client = import_module("openai").OpenAI(api_key="x", http_client=recording.client())
    talk: list[Any] = [{"role": "user", "content": _QUESTION}]
    known = {"model": "m", "store": False, "tools": [{"type": "function", **_WEATHER, "parameters": _SCHEMA, "strict": False}]}
    final = None
    for event in client.responses.create(input=talk, stream=True, **known):
        final = event.response if event.type == "response.completed" else final
    assert final is not None
    calls = [item for item in final.output if item.type == "function_call"]
    results = [{"type": "function_call_output", "call_id": call.call_id, "output": asked["result"]} for call in calls]
    client.responses.create(input=[*talk, *final.output, *results], stream=True, **known).close()
    usage = final.usage
    return {
        "text": final.output_text,
        "calls": [[call.call_id, call.name, json.loads(call.arguments)] for call in calls],
        "usage": [usage.input_tokens, usage.output_tokens, usage.input_tokens_details.cached_tokens],
        "body": recording.bodies[1],
    }


def chat(asked: Round) -> Round:
    """OpenAI's chat completions: the message goes back."""
    recording = Recording(asked["stream"])
    client = import_module("openai").OpenAI(api_key="x", http_client=recording.client())
    talk: list[Any] = [{"role": "user", "content": _QUESTION}]
    known = {"model": "m", "tools": [{"type": "function", "function": {**_WEATHER, "parameters": _SCHEMA}}]}
    with client.chat.completions.stream(messages=talk, **known) as stream:
        final = stream.get_final_completion()
    message = final.choices[0].message
    results = [{"role": "tool", "tool_call_id": call.id, "content": asked["result"]} for call in message.tool_calls]
    client.chat.completions.create(messages=[*talk, message, *results], stream=True, **known).close()
    return {
        "text": message.content or "",
        "calls": [[call.id, call.function.name, json.loads(call.function.arguments)] for call in message.tool_calls],
        "usage": [final.usage.prompt_tokens, final.usage.completion_tokens, final.usage.prompt_tokens_details.cached_tokens],
        "body": recording.bodies[1],
    }


def contents(asked: Round) -> Round:
    """Gemini: a chat keeps the parts and sends them back."""
    recording = Recording(asked["stream"])
    genai, types = import_module("google.genai"), import_module("google.genai.types")
    options = types.HttpOptions(httpx_client=recording.client())
    client = genai.Client(api_key="x", vertexai=False, http_options=options)
    tool = {"function_declarations": [{**_WEATHER, "parameters_json_schema": _SCHEMA}]}
    chat = client.chats.create(model="gemini-3-pro", config={"tools": [tool], "automatic_function_calling": {"disable": True}})
    chunks = list(chat.send_message_stream(_QUESTION))
    parts = [part for chunk in chunks for part in chunk.candidates[0].content.parts]
    calls = [part.function_call for part in parts if part.function_call]
    results = [types.Part.from_function_response(name=call.name, response={"result": asked["result"]}) for call in calls]
    list(chat.send_message_stream(results))
    usage = chunks[-1].usage_metadata
    written = usage.candidates_token_count + usage.thoughts_token_count
    return {
        "text": "".join(part.text for part in parts if part.text and not part.thought),
        "calls": [[call.id, call.name, call.args] for call in calls],
        "usage": [usage.prompt_token_count, written, usage.cached_content_token_count],
        "body": recording.bodies[1],
    }


_APIS: dict[str, Callable[[Round], Round]] = {"messages": messages, "responses": responses, "chat": chat, "contents": contents}

if __name__ == "__main__":
    main()
