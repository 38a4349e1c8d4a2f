"""The agent's card: what everyone may know of it, and what callers with a token may."""

from collections.abc import Iterator
from importlib.metadata import version
from typing import Any, Final

from a2a.types import (
    AgentCapabilities,
    AgentCard,
    AgentExtension,
    AgentInterface,
    AgentSkill,
    HTTPAuthSecurityScheme,
    SecurityRequirement,
    SecurityScheme,
    StringList,
)
from a2a.utils.constants import PROTOCOL_VERSION_1_0, TransportProtocol
from google.protobuf.json_format import ParseDict
from google.protobuf.struct_pb2 import Struct

from ..agents.pool import AgentHandle
from ..hybrid.hybrid import Hybrid

REST_PATH: Final = "/rest"
"""Path below which HTTP+JSON is served. JSON-RPC is served at `/`."""
MODES: Final = ("text/plain", "application/json")
"""Media types of the parts that a message may have."""
AGENTS_EXTENSION: Final = "urn:nearfar:a2a:agents:1"
"""Names the list of agents on the extended card."""
_BEARER: Final = "bearer"


def agent_card(hybrid: Hybrid, *, needs_token: bool) -> AgentCard:
    """Return the card that everyone sees, without the addresses: skills, and nothing of models or prices."""
    card = AgentCard(
        name="nearfar",
        description="Works on tasks on its owner's device, and asks models in the cloud where the owner's policy allows it.",
        version=version("nearfar"),
        capabilities=AgentCapabilities(streaming=True, push_notifications=False, extended_agent_card=True),
        default_input_modes=MODES,
        default_output_modes=["text/plain"],
        skills=_skills(hybrid),
    )
    if needs_token:
        scheme = HTTPAuthSecurityScheme(scheme="Bearer", description="A token of `nearfar serve token add` with the scope tasks.")
        card.security_schemes[_BEARER].CopyFrom(SecurityScheme(http_auth_security_scheme=scheme))
        card.security_requirements.append(SecurityRequirement(schemes={_BEARER: StringList()}))
    return card


def interfaces(url: str, grpc_address: str) -> Iterator[AgentInterface]:
    """Yield the addresses of the three transports, the preferred one first."""
    bindings = (
        (TransportProtocol.JSONRPC, f"{url}/"),
        (TransportProtocol.HTTP_JSON, f"{url}{REST_PATH}"),
        (TransportProtocol.GRPC, grpc_address),
    )
    for binding, address in bindings:
        yield AgentInterface(url=address, protocol_binding=binding.value, protocol_version=PROTOCOL_VERSION_1_0)


def extended_card(card: AgentCard, hybrid: Hybrid) -> AgentCard:
    """Return a card that also lists the agents with their models and prices."""
    extended = AgentCard()
    extended.CopyFrom(card)
    params = ParseDict({"agents": [_told(handle) for handle in hybrid.pool]}, Struct())
    listed = AgentExtension(
        uri=AGENTS_EXTENSION, description="The agents, with side, model, and US dollars per million tokens.", params=params
    )
    extended.capabilities.extensions.append(listed)
    return extended


def _skills(hybrid: Hybrid) -> Iterator[AgentSkill]:
    """Yield a skill for tasks of any kind, and one for each class of tasks that the policy's rules name."""
    yield AgentSkill(id="task", name="Task", description="Works on a task of any kind.", tags=["task"])
    classes = {name for rule in hybrid.policy.rules for name in rule.when.task_class}
    for name in sorted(classes):
        description = f'Works on tasks of the class {name}: metadata {{"nearfar": {{"task_class": "{name}"}}}}.'
        yield AgentSkill(id=f"task/{name}", name=name, description=description, tags=name.split("/"))


def _told(handle: AgentHandle) -> dict[str, Any]:
    prices = handle.prices
    told: dict[str, Any] = {"name": handle.name, "side": str(handle.side), "model": handle.model}
    return told if prices is None else {**told, "input": float(prices.input), "output": float(prices.output)}
