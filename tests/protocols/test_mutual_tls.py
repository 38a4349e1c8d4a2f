"""Servers that demand a certificate of every client: who its holder is, and what it may contradict."""

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager

import anyio
import pytest
from certificates import HOSTS, Authority

from nearfar.orchestrator.certificate import ensure_certificate
from nearfar.protocols import Message, ScriptedAgent, StepEvent, StepRequest, Unauthenticated, complete
from nearfar.protocols.channel import ClientTls, ServerTls
from nearfar.protocols.client import RemoteAgent
from nearfar.protocols.credentials import ClientCertificate, Credentials
from nearfar.protocols.security import IDENTITY
from nearfar.protocols.server import Server, serve

REQUEST = StepRequest(messages=(Message.user("Who am I?"),))
TOKENS = {"phone": "token-of-the-phone", "laptop": "token-of-the-laptop"}


class Greeter(ScriptedAgent):
    """Answers with the name of its caller."""

    async def step(self, request: StepRequest) -> AsyncGenerator[StepEvent, None]:
        async for event in ScriptedAgent([f"caller {IDENTITY.get().caller!r}"]).step(request):
            yield event


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


@asynccontextmanager
async def served(authority: Authority, tokens: dict[str, str] | None = None) -> AsyncIterator[Server]:
    certificate, key = authority.issue(*HOSTS)
    tls = ServerTls(certificate=certificate, private_key=key, client_roots=authority.certificate)
    with anyio.fail_after(30):
        async with serve(Greeter([]), "127.0.0.1:0", tls=tls, tokens=tokens) as server:
            yield server


async def answer(server: Server, authority: Authority, *names: str, subject: str = "somebody", token: str | None = None) -> str:
    """What the server tells the holder of a certificate with these names."""
    certificate, key = authority.issue(*names, subject=subject)
    tls = ClientTls(roots=authority.certificate, certificate=certificate, private_key=key)
    remote = await RemoteAgent.connect(server.address, token=token, tls=tls)
    try:
        return (await complete(remote, REQUEST)).text
    finally:
        await remote.aclose()


@pytest.mark.anyio
async def test_a_caller_without_a_token_has_the_name_in_its_certificate(authority: Authority) -> None:
    async with served(authority) as server:
        assert await answer(server, authority, "phone") == "caller 'phone'"


@pytest.mark.anyio
@pytest.mark.parametrize("names", [(), ("10.0.0.1",), ("phone", "laptop")], ids=["none", "an address", "two"])
async def test_a_certificate_without_one_name_names_nobody(authority: Authority, names: tuple[str, ...]) -> None:
    async with served(authority) as server:
        assert await answer(server, authority, *names, subject="phone") == "caller ''"


@pytest.mark.anyio
@pytest.mark.parametrize("names", [("phone",), ("laptop", "phone"), ()])
async def test_a_certificate_may_confirm_what_the_token_says(authority: Authority, names: tuple[str, ...]) -> None:
    async with served(authority, TOKENS) as server:
        assert await answer(server, authority, *names, token=TOKENS["phone"]) == "caller 'phone'"


@pytest.mark.anyio
@pytest.mark.parametrize("names", [("laptop",), ("PHONE",), ("*",), ("phone.example",)])
async def test_a_token_and_a_certificate_of_two_callers_are_refused(authority: Authority, names: tuple[str, ...]) -> None:
    async with served(authority, TOKENS) as server:
        with pytest.raises(Unauthenticated, match="the token is that of 'phone', and the certificate that of"):
            await answer(server, authority, *names, token=TOKENS["phone"])


@pytest.mark.anyio
async def test_a_certificate_takes_the_place_of_no_token(authority: Authority) -> None:
    async with served(authority, TOKENS) as server:
        with pytest.raises(Unauthenticated, match="no token"):
            await answer(server, authority, "phone")


def test_credentials_do_not_show_their_token() -> None:
    assert "token" not in repr(Credentials("Bearer token"))


def test_a_fingerprint_is_that_of_the_file(authority: Authority) -> None:
    certificate, key = authority.issue("phone")
    shown = ClientCertificate(("phone",), certificate.read_bytes())
    assert shown.fingerprint == ensure_certificate(certificate, key, ())
