"""One step on a llama-server, from the hub's request to the events that answer it."""

import time
from collections.abc import AsyncGenerator
from contextlib import aclosing

from ...protocols.errors import InvalidOutput, InvalidRequest, NearfarError, travelling_class
from ...protocols.v1 import agent_pb2 as pb
from ...protocols.v1 import hub_pb2
from .chat import Answer, request_body
from .llama_server import JsonObject, LlamaServer

_PATH = "/v1/chat/completions"
_LONGEST_WHOLE_ANSWER = 3600.0
"""Seconds. An answer with tools comes in one piece; its real limit is the step's own timeout."""


async def run_step(server: LlamaServer, request: pb.StepRequest, *, context_tokens: int) -> AsyncGenerator[pb.StepEvent, None]:
    """Run a step and yield its events. Closing it early stops the compute. Raises a `NearfarError`, and no other exception."""
    if not request.messages:
        raise InvalidRequest("the request has no messages")
    body = request_body(request, context_tokens=context_tokens)
    answer = Answer(request)
    began, first_token_seconds = time.monotonic(), None
    async with aclosing(_chunks(server, body)) as chunks:
        async for chunk in chunks:
            text = answer.feed(chunk)
            if text:
                if first_token_seconds is None and body["stream"]:
                    first_token_seconds = time.monotonic() - began
                yield pb.StepEvent(text=text)
    for event in answer.events(first_token_seconds=first_token_seconds):
        yield event


def failure(error: NearfarError) -> hub_pb2.StepFailure:
    """Describe `error` for the hub, which raises the same class."""
    reason = travelling_class(error).__name__
    message = error.message.encode(errors="replace").decode()  # it may quote half a character of llama-server's
    return hub_pb2.StepFailure(reason=reason, message=message, hint=error.hint, retry_after=error.retry_after)


async def _chunks(server: LlamaServer, body: JsonObject) -> AsyncGenerator[JsonObject, None]:
    """Yield the answer's chunks; a whole answer is one."""
    if not body["stream"]:
        whole = await server.ask(_PATH, body, seconds=_LONGEST_WHOLE_ANSWER)
        if not isinstance(whole, dict):
            raise InvalidOutput("llama-server's answer is not a JSON object", hint="check that --server is a llama-server")
        yield whole
        return
    async with aclosing(server.stream(_PATH, body)) as chunks:
        async for chunk in chunks:
            yield chunk
