"""Serve the store to devices without one of their own: they see and write what their user may."""

from typing import TYPE_CHECKING, Any, Final

import orjson

from ....protocols import InvalidRequest, PrivacyViolation
from ....protocols.tiers import Tier
from ....protocols.v1 import memory_pb2 as pb
from ..item import Principal
from ..memory_item import MemoryItem
from .peer import Peer

if TYPE_CHECKING:
    from ..store import MemoryStore

_TIERS: Final = {pb.MEMORY_TIER_DEVICE: Tier.DEVICE, pb.MEMORY_TIER_USER: Tier.USER, pb.MEMORY_TIER_SHARED: Tier.SHARED}
_NUMBERS: Final = {tier: number for number, tier in _TIERS.items()}
_PAGE: Final = 10
_LARGEST_PAGE: Final = 100
_SECONDS_PER_MINUTE: Final = 60


class Thin:
    """Answers the calls of `MemoryService` that need no replica on the other side. Its methods block."""

    def __init__(self, store: "MemoryStore") -> None:
        self._store = store

    def put(self, peer: Peer, request: pb.PutRequest) -> pb.PutResponse:
        tier = _TIERS.get(request.tier, Tier.DEVICE) if request.HasField("tier") else None
        if tier is Tier.DEVICE:
            raise PrivacyViolation("an item of tier device must not leave its device", hint="keep it there, or write it with tier user")
        version = self._view(peer).put(
            tuple(request.address.namespace),
            request.address.key,
            _object(request.value),
            ttl=request.ttl / _SECONDS_PER_MINUTE if request.HasField("ttl") else None,
            if_version=request.if_version if request.HasField("if_version") else None,
            tier=tier,
            subject=request.subject or None,
        )
        return pb.PutResponse(version=version)

    def get(self, peer: Peer, request: pb.GetRequest) -> pb.GetResponse:
        item = self._view(peer).get(tuple(request.address.namespace), request.address.key)
        return pb.GetResponse(item=None if item is None else item_to_proto(item))

    def search(self, peer: Peer, request: pb.SearchRequest) -> pb.SearchResponse:
        if request.limit > _LARGEST_PAGE:
            raise InvalidRequest(
                f"a page of {request.limit} items is too large", hint=f"ask for {_LARGEST_PAGE} at most, then for the next"
            )
        found = self._view(peer).search(
            tuple(request.namespace),
            query=request.query or None,
            filter=_object(request.filter) if request.filter else None,
            limit=request.limit or _PAGE,
            offset=request.offset,
        )
        return pb.SearchResponse(items=map(item_to_proto, found))

    def delete(self, peer: Peer, request: pb.DeleteRequest) -> pb.DeleteResponse:
        if_version = request.if_version if request.HasField("if_version") else None
        self._view(peer).delete(tuple(request.address.namespace), request.address.key, if_version=if_version)
        return pb.DeleteResponse()

    def erase(self, peer: Peer, request: pb.EraseRequest) -> pb.EraseResponse:
        view = self._view(peer)
        match request.WhichOneof("what"):
            case "subject":
                gone = view.erase(subject=request.subject)
            case "prefix":
                gone = view.erase(prefix=tuple(request.prefix.namespace))
            case _:
                raise InvalidRequest("an erasure needs either a subject or a namespace prefix", hint="give one of them")
        return pb.EraseResponse(items=len(gone))

    def _view(self, peer: Peer) -> "MemoryStore":
        return self._store.view(Principal(user=peer.user, device=peer.name))


def item_to_proto(item: MemoryItem) -> pb.MemoryItem:
    return pb.MemoryItem(
        address=pb.MemoryAddress(namespace=item.namespace, key=item.key),
        value=orjson.dumps(item.value),
        version=item.version,
        tier=_NUMBERS[item.tier],
        user=item.user,
        agent=item.agent,
        source=item.source,
        trust=item.trust,
        subject=item.subject,
        created_at=item.created_at.timestamp(),
        updated_at=item.updated_at.timestamp(),
        conflicts=item.conflicts,
        score=item.score,
    )


def _object(encoded: bytes) -> dict[str, Any]:
    try:
        value = orjson.loads(encoded)
    except orjson.JSONDecodeError as error:
        raise InvalidRequest("the value is no JSON", hint="send a JSON object") from error
    if not isinstance(value, dict):
        raise InvalidRequest("the value is no JSON object", hint='wrap it: {"text": ...}')
    return value
