"""The error tree: one table, drawn as it is, and the same class at both ends of a socket."""

import re

import anyio
import pytest

from nearfar import protocols
from nearfar.protocols import InternalError, Message, NearfarError, RateLimited, ScriptedAgent, StepRequest, complete, errors
from nearfar.protocols.client import RemoteAgent
from nearfar.protocols.server import serve

LEAVES = [pytest.param(error, id=error.__name__) for error in errors.MAPPINGS]


def subclasses(cls: type[NearfarError]) -> set[type[NearfarError]]:
    found = {child for child in cls.__subclasses__() if child.__module__ == errors.__name__}
    return found.union(*(subclasses(child) for child in found))


def drawn_tree() -> dict[str, str]:
    """Class name -> parent's name, read from the drawing in the module's docstring."""
    parents: dict[str, str] = {}
    path: list[tuple[int, str]] = []
    for indent, name in re.findall(r"^( *)(?:[x+-] )?([A-Z][A-Za-z]+)(?:  +[a-z].*)?$", errors.__doc__ or "", re.MULTILINE):
        while path and path[-1][0] >= len(indent):
            path.pop()
        if path:
            parents[name] = path[-1][1]
        path.append((len(indent), name))
    return parents


def test_drawing_shows_every_class_below_its_base() -> None:
    assert drawn_tree() == {cls.__name__: cls.__bases__[0].__name__ for cls in subclasses(NearfarError)}


def test_every_concrete_class_is_in_the_table_and_public() -> None:
    abstract = {errors.UserError, errors.StoreError, errors.AgentError}
    assert set(errors.MAPPINGS) == subclasses(NearfarError) - abstract
    for cls in subclasses(NearfarError):
        assert getattr(protocols, cls.__name__) is cls
        assert cls.__name__ in protocols.__all__


@pytest.mark.anyio
@pytest.mark.parametrize("error", LEAVES)
async def test_error_crosses_a_socket_as_the_same_class(error: type[NearfarError]) -> None:
    original = error("what happened: \N{SNOWMAN}", hint="what to do", retry_after=1.25)
    with anyio.fail_after(30):
        received = await through_a_socket(original)
    assert type(received) is error
    assert (received.message, received.hint, received.retry_after) == (original.message, original.hint, 1.25)


@pytest.mark.anyio
async def test_class_outside_the_table_crosses_as_its_nearest_ancestor() -> None:
    class OurRateLimited(RateLimited):
        """As a third party may define it."""

    with anyio.fail_after(30):
        assert type(await through_a_socket(OurRateLimited("slow down"))) is RateLimited
        assert type(await through_a_socket(errors.AgentError("unclear"))) is InternalError


@pytest.mark.anyio
async def test_endless_message_crosses_cut() -> None:
    with anyio.fail_after(30):
        received = await through_a_socket(RateLimited("\N{SNOWMAN}" * 100_000, hint="x" * 100_000))
    assert type(received) is RateLimited
    assert received.message.startswith("\N{SNOWMAN}" * 100)


async def through_a_socket(error: NearfarError) -> NearfarError:
    async with serve(ScriptedAgent([error])) as server:
        remote = await RemoteAgent.connect(server.address)
        with pytest.raises(NearfarError) as raised:
            await complete(remote, StepRequest(messages=(Message.user("hi"),)))
        await remote.aclose()
    return raised.value


@pytest.mark.parametrize(
    ("status", "expected"),
    [(401, errors.Unauthenticated), (429, errors.RateLimited), (599, errors.Unavailable), (418, errors.InvalidRequest)],
)
def test_foreign_http_status_finds_its_class(status: int, expected: type[NearfarError]) -> None:
    assert type(errors.from_http_status(status, "x")) is expected


@pytest.mark.parametrize(
    ("status", "expected"),
    [("UNAVAILABLE", errors.Unavailable), ("PERMISSION_DENIED", errors.PermissionDenied), ("NEW_STATUS", errors.InternalError)],
)
def test_foreign_grpc_status_finds_its_class(status: str, expected: type[NearfarError]) -> None:
    assert type(errors.from_grpc_status(status, "x")) is expected


def test_only_what_may_succeed_later_is_retryable() -> None:
    assert errors.is_retryable(errors.RateLimited("x"))
    assert not errors.is_retryable(errors.QuotaExceeded("x"))
    assert not errors.is_retryable(errors.UserError("x"))
