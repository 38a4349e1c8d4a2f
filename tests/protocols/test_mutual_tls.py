"""Servers that demand a certificate of every client: who its holder is, and what it may contradict."""

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime

import anyio
import pytest
from certificates import HOSTS, Authority, CertificateAndKey

from nearfar.protocols import (
    Agent,
    ConfigError,
    Message,
    PermissionDenied,
    ScriptedAgent,
    StepEvent,
    StepRequest,
    Unauthenticated,
    complete,
    stream,
)
from nearfar.protocols.client import RemoteAgent
from nearfar.protocols.security import (
    ANY_CERTIFICATE,
    IDENTITY,
    ClientCertificate,
    Credentials,
    Scope,
    TokenRecord,
    Tokens,
    token_digest,
    token_records,
)
from nearfar.protocols.server import Server, serve
from nearfar.protocols.tls import ClientTls, ServerTls, ensure_certificate

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
async def served(authority: Authority, tokens: Tokens | None = None, agent: Agent | None = None) -> AsyncIterator[Server]:
    certificate, key = authority.issue(*HOSTS)
    tls = ServerTls(certificate=certificate, private_key=key, client_roots=authority.certificate)
    with anyio.fail_after(30):
        async with serve(agent or Greeter([]), "127.0.0.1:0", tls=tls, tokens=tokens) as server:
            yield server


async def answer(server: Server, authority: Authority, *names: str, subject: str = "somebody", token: str | None = None) -> str:
    """What the server tells the holder of a certificate with these names."""
    return await answer_to(server, authority, authority.issue(*names, subject=subject), token)


async def answer_to(server: Server, authority: Authority, files: CertificateAndKey, token: str | None = None) -> str:
    """What it tells the holder of this certificate."""
    tls = ClientTls(roots=authority.certificate, certificate=files[0], private_key=files[1])
    remote = await RemoteAgent.connect(server.address, token=token, tls=tls)
    try:
        return (await complete(remote, REQUEST)).text
    finally:
        await remote.aclose()


def _shown(files: CertificateAndKey) -> ClientCertificate:
    return ClientCertificate((), files[0].read_bytes())


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
        with pytest.raises(Unauthenticated, match="the token is that of 'phone', and the certificate is for"):
            await answer(server, authority, *names, token=TOKENS["phone"])


@pytest.mark.anyio
async def test_a_certificate_takes_the_place_of_no_token(authority: Authority) -> None:
    async with served(authority, TOKENS) as server:
        with pytest.raises(Unauthenticated, match="no token, and its certificate, for 'phone', gives no access"):
            await answer(server, authority, "phone")


PHONE = TokenRecord(id="a", caller="phone", certificate=ANY_CERTIFICATE)
LAPTOP = TokenRecord(id="b", caller="laptop", certificate=ANY_CERTIFICATE)


@pytest.mark.anyio
@pytest.mark.parametrize("names", [("phone",), ("somebody", "phone")])
async def test_where_the_owner_says_so_a_certificate_takes_the_place_of_a_token(authority: Authority, names: tuple[str, ...]) -> None:
    async with served(authority, [PHONE]) as server:
        assert await answer(server, authority, *names) == "caller 'phone'"


@pytest.mark.anyio
@pytest.mark.parametrize("names", [(), ("PHONE",), ("*",), ("laptop",)])
async def test_a_certificate_that_does_not_name_the_caller_is_not_its_own(authority: Authority, names: tuple[str, ...]) -> None:
    async with served(authority, [PHONE]) as server:
        with pytest.raises(Unauthenticated, match="gives no access"):
            await answer(server, authority, *names, subject="phone")


@pytest.mark.anyio
async def test_a_certificate_of_two_callers_is_that_of_neither(authority: Authority) -> None:
    async with served(authority, [PHONE, LAPTOP]) as server:
        with pytest.raises(Unauthenticated, match="several callers"):
            await answer(server, authority, "phone", "laptop")


@pytest.mark.anyio
async def test_a_wrong_token_is_not_made_good_by_a_certificate(authority: Authority) -> None:
    async with served(authority, [PHONE]) as server:
        with pytest.raises(Unauthenticated, match="the token is wrong"):
            await answer(server, authority, "phone", token="guessed")


@pytest.mark.anyio
async def test_a_certificate_has_the_scopes_of_its_record(authority: Authority) -> None:
    async with served(authority, [replace(PHONE, scopes=frozenset({Scope.DESCRIBE}))]) as server:
        with pytest.raises(PermissionDenied, match="'steps'"):
            await answer(server, authority, "phone")


@pytest.mark.anyio
async def test_a_certificate_is_good_until_the_time_of_its_record(authority: Authority) -> None:
    async with served(authority, [replace(PHONE, expires=datetime.now(UTC))]) as server:
        with pytest.raises(Unauthenticated, match="the certificate was valid here until"):
            await answer(server, authority, "phone")


@pytest.mark.anyio
async def test_one_certificate_of_a_caller_can_be_let_in_and_revoked_alone(authority: Authority) -> None:
    lost, kept = authority.issue("phone"), authority.issue("phone")
    records = [TokenRecord(id=id, caller="phone", certificate=_shown(files).fingerprint) for id, files in (("a", lost), ("b", kept))]
    async with served(authority, records) as server:
        assert [await answer_to(server, authority, files) for files in (lost, kept)] == ["caller 'phone'"] * 2
        server.replace_tokens(records[1:])
        assert await answer_to(server, authority, kept) == "caller 'phone'"
        with pytest.raises(Unauthenticated, match="unknown here or was revoked"):
            await answer_to(server, authority, lost)


@pytest.mark.anyio
async def test_steps_of_a_certificate_that_is_revoked_end(authority: Authority) -> None:
    certificate, key = authority.issue("phone")
    tls = ClientTls(roots=authority.certificate, certificate=certificate, private_key=key)
    async with served(authority, [PHONE, LAPTOP], ScriptedAgent([["half", anyio.Event()]])) as server:
        remote = await RemoteAgent.connect(server.address, tls=tls)
        async with stream(remote, REQUEST) as events:
            await anext(events)
            server.replace_tokens([LAPTOP])
            with pytest.raises(Unauthenticated, match="revoked"):
                await anext(events)
        await remote.aclose()


@pytest.mark.parametrize(
    "records",
    [[PHONE, replace(PHONE, id="c")], [replace(PHONE, certificate="")], [replace(PHONE, digest=token_digest("token"))]],
    ids=["twice", "neither", "both"],
)
def test_records_of_certificates_that_contradict_themselves_are_refused(records: list[TokenRecord]) -> None:
    with pytest.raises(ConfigError):
        token_records(records)


def test_credentials_do_not_show_their_token() -> None:
    assert "token" not in repr(Credentials("Bearer token"))


def test_a_fingerprint_is_that_of_the_file(authority: Authority) -> None:
    certificate, key = authority.issue("phone")
    assert _shown((certificate, key)).fingerprint == ensure_certificate(certificate, key, ())
