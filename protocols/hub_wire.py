"""What only travels between a worker and its hub: registration, device state and failures."""

import math
from dataclasses import dataclass

from .cards import AgentCard
from .device_state import DeviceState, PowerSource, Thermal
from .errors import (
    BY_REASON,
    ApprovalNeeded,
    ConfigError,
    InternalError,
    InvalidOutput,
    InvalidRequest,
    LedgerConflict,
    NearfarError,
    NotFound,
    RunBusy,
    StoreError,
    Unauthenticated,
    Unavailable,
    VersionConflict,
    travelling_class,
)
from .limits import AGENTS_OF_A_WORKER, FAILURE_LENGTH, REGISTRATION_BYTES, WORKER_NAME_LENGTH
from .v1 import hub_pb2 as pb
from .wire import FaultsBecome, card_from_proto, card_to_proto

_POWER_SOURCES = {PowerSource.MAINS: pb.POWER_SOURCE_MAINS, PowerSource.BATTERY: pb.POWER_SOURCE_BATTERY}
_THERMALS = {
    Thermal.NOMINAL: pb.THERMAL_NOMINAL,
    Thermal.FAIR: pb.THERMAL_FAIR,
    Thermal.SERIOUS: pb.THERMAL_SERIOUS,
    Thermal.CRITICAL: pb.THERMAL_CRITICAL,
}
_POWER_SOURCE_OF = {number: source for source, number in _POWER_SOURCES.items()}
_THERMAL_OF = {number: thermal for thermal, number in _THERMALS.items()}

_AT_HOME = (ConfigError, Unauthenticated, NotFound, ApprovalNeeded, RunBusy, StoreError, VersionConflict, LedgerConflict)
"""Errors that say what is wrong where they are raised, and not with the request. Those of runs and stores would pass for the caller's."""


@dataclass(frozen=True, kw_only=True)
class Registration:
    """What a worker says about itself when it attaches. Who it is, its token says."""

    instance: str
    """Random, and the same for the life of the worker's process."""
    cards: tuple[AgentCard, ...]
    state: DeviceState


def registration_to_proto(registration: Registration) -> pb.Register:
    return pb.Register(
        instance=registration.instance,
        agents=map(card_to_proto, registration.cards),
        state=device_state_to_proto(registration.state),
    )


def registration_from_proto(message: pb.Register) -> Registration:
    """Raises `InvalidRequest` for what no worker of ours would send: it comes from a stranger's machine."""
    size = message.ByteSize()
    if size > REGISTRATION_BYTES:
        raise InvalidRequest(f"the registration has {size} bytes, and {REGISTRATION_BYTES} are allowed")
    if not 1 <= len(message.instance) <= WORKER_NAME_LENGTH:
        raise InvalidRequest(f"a worker's instance is a random text of 1 to {WORKER_NAME_LENGTH} characters")
    if not 1 <= len(message.agents) <= AGENTS_OF_A_WORKER:
        raise InvalidRequest(f"a worker offers 1 to {AGENTS_OF_A_WORKER} agents, not {len(message.agents)}")
    try:
        cards = tuple(map(card_from_proto, message.agents))
    except InvalidOutput as error:  # here it is the registration that is at fault
        raise InvalidRequest(error.message) from error
    names = [card.name for card in cards]
    if len(set(names)) < len(names) or not all(name.isprintable() and len(name) <= WORKER_NAME_LENGTH for name in names):
        raise InvalidRequest(f"agents have distinct, printable names of at most {WORKER_NAME_LENGTH} characters")
    if not all(card.model.isprintable() for card in cards):  # it is shown in terminals, which obey control characters
        raise InvalidRequest("the name of a model is not printable")
    return Registration(instance=message.instance, cards=cards, state=device_state_from_proto(message.state))


def device_state_to_proto(state: DeviceState) -> pb.DeviceState:
    """`is_offline` does not travel: a worker that can send this is not."""
    return pb.DeviceState(
        battery=state.battery,
        power_source=pb.POWER_SOURCE_UNKNOWN if state.power_source is None else _POWER_SOURCES[state.power_source],
        thermal=pb.THERMAL_UNKNOWN if state.thermal is None else _THERMALS[state.thermal],
        free_memory_bytes=state.free_memory_bytes,
    )


def device_state_from_proto(message: pb.DeviceState) -> DeviceState:
    """The inverse of `device_state_to_proto`; what this version does not know is unknown. Raises `InvalidRequest` for a malformed one."""
    with _READING_STATE:
        return DeviceState(
            battery=message.battery if message.HasField("battery") else None,
            power_source=_POWER_SOURCE_OF.get(message.power_source),
            thermal=_THERMAL_OF.get(message.thermal),
            free_memory_bytes=message.free_memory_bytes if message.HasField("free_memory_bytes") else None,
        )


def failure_to_proto(error: NearfarError) -> pb.StepFailure:
    return pb.StepFailure(
        reason=travelling_class(error).__name__,
        message=_cut(error.message),
        hint=_cut(error.hint),
        retry_after=error.retry_after,
    )


def failure_from_proto(message: pb.StepFailure) -> NearfarError:
    """The error that the worker raised; `InternalError` for a class that this version does not know.

    What is wrong with the worker's own configuration, runs or stores is `Unavailable` here: its caller can do nothing about it but ask
    another agent.
    """
    cls = BY_REASON.get(message.reason, InternalError)
    cls = Unavailable if issubclass(cls, _AT_HOME) else cls
    has_delay = message.HasField("retry_after") and math.isfinite(message.retry_after) and message.retry_after >= 0
    return cls(_cut(message.message), hint=_cut(message.hint), retry_after=message.retry_after if has_delay else None)


def _cut(text: str) -> str:
    """A valid, bounded text; agents may quote their model, which may have written half a character."""
    return text[:FAILURE_LENGTH].encode(errors="replace").decode()


_READING_STATE = FaultsBecome(InvalidRequest, "the device state is malformed")
