"""Messages between replicas as protobuf."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from math import isfinite
from typing import overload

from ....protocols import InvalidRequest
from ....protocols.v1 import memory_pb2 as pb
from ..operation import Dot
from .facts import Facts, check_size, decode_facts, encode_facts, is_device
from .keys import SubjectKey
from .messages import SCHEMA, Batch, Hello, Range, Received, Request, SealedOperation


def hello_to_proto(hello: Hello) -> pb.Hello:
    return pb.Hello(
        schema=hello.schema, device=hello.device, now=hello.now, known=hello.known, facts=encode_facts(hello.facts), log=hello.log
    )


def hello_from_proto(message: pb.Hello) -> Hello:
    """Raises `InvalidRequest` for what no replica says."""
    if not is_device(message.device) or not is_device(message.log):
        raise InvalidRequest("a replica says its name and that of its log", hint="the peer is broken, or no nearfar store")
    if not isfinite(message.now):
        raise InvalidRequest("the peer's clock shows no time", hint="the peer is broken, or no nearfar store")
    facts = _facts(message.facts) if message.schema == SCHEMA else Facts()  # what another schema means by them is not known here
    return Hello(message.device, message.now, dict(message.known), facts, message.log, message.schema)


def request_to_proto(request: Request) -> pb.Continuation:
    return pb.Continuation(known=request.known, log=request.log, position=request.position, takes_all=request.takes_all)


def request_from_proto(message: pb.Continuation) -> Request:
    return Request(dict(message.known), message.log, message.position, message.takes_all)


def batch_to_proto(batch: Batch) -> pb.Batch:
    return pb.Batch(
        log=batch.log,
        start=batch.start,
        end=batch.end,
        operations=_operations_to_proto(batch.operations),
        holes=[pb.Hole(device=hole.device, first=hole.first, last=hole.last) for hole in batch.holes],
        keys=[pb.SubjectKey(id=key.id, tag=key.tag, key=key.key) for key in batch.keys],
        facts=None if batch.facts is None else encode_facts(batch.facts),
        known=None if batch.known is None else pb.Knowledge(known=batch.known),
    )


def batch_from_proto(message: pb.Batch) -> Batch:
    """Raises `InvalidRequest` for what no replica sends."""
    if not is_device(message.log) or not message.start <= message.end < 1 << 63:
        raise InvalidRequest("a batch goes from one position of a log to a later one", hint="the peer is broken, or no nearfar store")
    return Batch(
        message.log,
        message.start,
        message.end,
        _operations_from_proto(message.operations),
        tuple(Range(hole.device, hole.first, hole.last) for hole in message.holes),
        tuple(SubjectKey(key.id, key.tag, key.key) for key in message.keys),
        _facts(message.facts) if message.facts else None,
        dict(message.known.known) if message.HasField("known") else None,
    )


def _operations_to_proto(operations: Sequence[SealedOperation]) -> pb.Operations:
    places: dict[str, int] = {}
    return pb.Operations(
        device=[places.setdefault(dot.device, len(places)) for dot, _ in operations],
        devices=list(places),
        sequence=[dot.sequence for dot, _ in operations],
        length=[len(payload) for _, payload in operations],
        payloads=b"".join([payload for _, payload in operations]),
    )


def _operations_from_proto(message: pb.Operations) -> Sequence[SealedOperation]:
    devices, payloads = list(message.devices), message.payloads
    ends = list(accumulate(message.length))
    if not len(message.device) == len(message.sequence) == len(ends) or (ends[-1] if ends else 0) != len(payloads):
        raise InvalidRequest("the columns of a batch are not of the same length", hint="the peer is broken, or no nearfar store")
    if message.device and max(message.device) >= len(devices):
        raise InvalidRequest("a batch has writes of a device that it does not name", hint="the peer is broken, or no nearfar store")
    return _Columns([devices[place] for place in message.device], list(message.sequence), [0, *ends], payloads)


@dataclass(frozen=True, slots=True)
class _Columns(Sequence[SealedOperation]):
    """Operations that are made when somebody looks at them, so that not all of a batch are there at once."""

    devices: list[str]
    sequences: list[int]
    bounds: list[int]
    """Of the payloads, one more than there are operations."""
    payloads: bytes

    def __len__(self) -> int:
        return len(self.sequences)

    @overload
    def __getitem__(self, place: int) -> SealedOperation: ...

    @overload
    def __getitem__(self, place: slice) -> list[SealedOperation]: ...

    def __getitem__(self, place: int | slice) -> SealedOperation | list[SealedOperation]:
        if isinstance(place, slice):
            return [self[one] for one in range(len(self))[place]]
        payload = self.payloads[self.bounds[place] : self.bounds[place + 1]]
        return SealedOperation(Dot(self.devices[place], self.sequences[place]), payload)


def received_to_proto(received: Received) -> pb.Received:
    return pb.Received(operations=received.operations, holes=received.holes, refused=received.refused, conflicts=received.conflicts)


def received_from_proto(message: pb.Received) -> Received:
    return Received(message.operations, message.holes, message.refused, message.conflicts)


def _facts(encoded: bytes) -> Facts:
    if not encoded:
        return Facts()
    try:
        facts = decode_facts(encoded)
    except ValueError as error:
        raise InvalidRequest(str(error), hint="the peer is broken, or no nearfar store") from error
    check_size(facts)
    return facts
