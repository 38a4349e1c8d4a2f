"""What a llama-server says about itself, as an agent card. A capability is claimed if the server has shown it."""

from datetime import UTC, datetime

from ...protocols.errors import InvalidOutput, NearfarError, Unavailable
from ...protocols.v1 import agent_pb2 as pb
from .chat import Answer, inner, model_name, request_body, whole_characters
from .llama_server import JsonObject, LlamaServer

_TRIAL = pb.StepRequest(messages=[pb.Message(role=pb.ROLE_USER, text="Hello.")], max_output_tokens=1)
_EXAMPLE: JsonObject = {
    "messages": [{"role": "user", "content": "Hello."}],
    "tools": [{"type": "function", "function": {"name": "look", "parameters": {"type": "object", "properties": {}}}}],
}
"""A prompt with a tool, to be formatted and not to be answered."""
_UINT32 = 2**32 - 1
_INT64 = 2**63
_LONGEST_MODEL = 256
"""Characters. A hub shows the name in tables, and takes no card that is much longer."""


async def read_card(server: LlamaServer, name: str) -> pb.AgentCard:
    """Ask the server what it runs, and let it generate one token.

    Raises `Unavailable` while the server is not there or still loading, `InvalidOutput` if it is no llama-server.
    """
    await server.ask("/health")
    properties = await server.ask("/props")
    models = await server.ask("/v1/models")
    context = _positive(inner(properties, "default_generation_settings", "n_ctx"), "context size")
    weights = inner(models, "data", 0, "meta", "n_params")
    return pb.AgentCard(
        name=name,
        side=pb.SIDE_NEAR,
        model=_model(properties, models),
        description="A model behind llama-server on another device.",
        capabilities=pb.Capabilities(
            tools=await _takes_tools(server), json_schema=True, confidence=await _is_sure(server, context), cancellation=True
        ),
        limits=pb.Limits(context_tokens=context, concurrency=_positive(inner(properties, "total_slots"), "number of slots")),
        prices=pb.Prices(input="0", output="0", source="runs on this device", as_of=datetime.now(UTC).date().isoformat()),
        parameters=weights if type(weights) is int and 0 < weights < _INT64 else None,
    )


async def _takes_tools(server: LlamaServer) -> bool:
    try:
        await server.ask("/apply-template", _EXAMPLE)
    except Unavailable:
        raise
    except NearfarError:  # it was started with --no-jinja, or is older than the endpoint
        return False
    return True


async def _is_sure(server: LlamaServer, context: int) -> bool:
    """Whether an answer comes with log-probabilities."""
    answer = Answer(_TRIAL)
    async for chunk in server.stream("/v1/chat/completions", request_body(_TRIAL, context_tokens=context)):
        answer.feed(chunk)
    (closing,) = answer.events(first_token_seconds=None)
    return closing.finished.HasField("confidence")


def _model(properties: object, models: object) -> str:
    """The alias that the server was given, else the file's name."""
    for found in (inner(properties, "model_alias"), inner(models, "data", 0, "id"), inner(properties, "model_path")):
        if isinstance(found, str) and (name := _shown(model_name(found))):
            return name
    raise InvalidOutput("llama-server does not say which model it runs", hint="check that --server is a llama-server")


def _shown(name: str) -> str:
    """Return the name as a hub takes it, which refuses control characters: they are commands to a terminal."""
    return "".join(character for character in whole_characters(name) if character.isprintable())[:_LONGEST_MODEL]


def _positive(value: object, what: str) -> int:
    if type(value) is not int or not 0 < value <= _UINT32:
        raise InvalidOutput(f"llama-server tells no {what}", hint="check that --server is a llama-server of 2025 or later")
    return value
