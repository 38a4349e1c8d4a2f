"""Pairing a worker with a hub: the line that holds everything, and the certificate that is trusted by its fingerprint."""

import io
import ssl
import string
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from anyio import to_thread
from certificates import Authority, CertificateAndKey
from hypothesis import given
from hypothesis import strategies as st

from nearfar.protocols import ConfigError, ScriptedAgent, Unauthenticated, Unavailable
from nearfar.protocols.address import Pairing, fingerprint_of, parse_address, parse_fingerprint, parse_pairing, read_pairing
from nearfar.protocols.client import RemoteAgent
from nearfar.protocols.server import Server, serve
from nearfar.protocols.tls import ClientTls, ServerTls, pinned_tls

TOKEN = "5f" * 32
FINGERPRINT = "sha256:" + "0a" * 32
PAIRING = Pairing(address="192.168.1.20:7445", token=TOKEN, fingerprint=FINGERPRINT, name="phone")


def test_the_line_is_what_people_can_read() -> None:
    assert PAIRING.uri == f"nearfar://192.168.1.20:7445?token={TOKEN}&fingerprint={FINGERPRINT}&name=phone"


@given(
    host=st.sampled_from(["192.168.1.20", "[fe80::1]", "hub.example", "localhost"]),
    port=st.integers(min_value=0, max_value=65535),
    token=st.text(alphabet=string.printable.strip() + " ", min_size=1, max_size=80),
    fingerprint=st.none() | st.just(FINGERPRINT),
    name=st.text(max_size=30),
)
def test_a_pairing_survives_its_line(host: str, port: int, token: str, fingerprint: str | None, name: str) -> None:
    pairing = Pairing(address=f"{host}:{port}", token=token, fingerprint=fingerprint, name=name)
    assert parse_pairing(f"  {pairing.uri}\n") == pairing


@given(text=st.text(max_size=60) | st.text(max_size=60).map("nearfar://h:1?".__add__))
def test_what_is_no_pairing_is_a_typed_error(text: str) -> None:
    try:
        parse_pairing(text)
    except ConfigError:
        return
    assert text.strip().startswith("nearfar://")


@pytest.mark.parametrize(
    "line",
    [
        PAIRING.uri.replace("nearfar://", "https://"),
        PAIRING.uri.replace(":7445", ""),
        PAIRING.uri.replace("token=", "key="),
        PAIRING.uri.replace("token=5f5f", "fingerprint=5f5f"),
        PAIRING.uri.replace(FINGERPRINT, "sha256:0a0a"),
        PAIRING.uri.replace(FINGERPRINT, ""),
        PAIRING.uri.replace(FINGERPRINT, "md5:" + "0a" * 32),
        PAIRING.uri + "&name=other",
        PAIRING.uri + "&further=1",
        PAIRING.uri + "&name=" + "x" * 3000,
        PAIRING.uri.replace("?", "/path?"),
    ],
)
def test_a_damaged_line_is_refused_and_its_token_is_not_repeated(line: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_pairing(line)
    assert "5f5f" not in str(caught.value)


def test_a_pairing_does_not_show_its_token() -> None:
    assert TOKEN not in repr(PAIRING)


def test_a_fingerprint_as_openssl_writes_it_is_the_same() -> None:
    assert parse_fingerprint("SHA256:" + ":".join(["0A"] * 32)) == FINGERPRINT


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has other permissions")
def test_a_file_that_others_can_read_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "pairing"
    path.write_text(PAIRING.uri, encoding="utf-8")
    path.chmod(0o640)
    with pytest.raises(ConfigError, match="others can read"):
        read_pairing(str(path))
    path.chmod(0o600)
    assert read_pairing(str(path)) == PAIRING


def test_a_file_that_is_missing_is_a_typed_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        read_pairing(str(tmp_path / "nothing"))


def test_a_pairing_can_come_from_standard_input(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(PAIRING.uri + "\n"))
    assert read_pairing("-") == PAIRING


@asynccontextmanager
async def served(files: CertificateAndKey, tokens: dict[str, str] | None = None) -> AsyncIterator[Server]:
    certificate, key = files
    tls = ServerTls(certificate=certificate, private_key=key)
    async with serve(ScriptedAgent(["Hello."]), "localhost:0", tls=tls, tokens=tokens) as server:
        yield server


def fingerprint_in(certificate: Path) -> str:
    return fingerprint_of(ssl.PEM_cert_to_DER_cert(certificate.read_text(encoding="ascii")))


async def pinned(address: str, fingerprint: str) -> ClientTls:
    return await to_thread.run_sync(pinned_tls, parse_address(address), fingerprint)


@pytest.mark.anyio
async def test_a_server_is_known_by_the_fingerprint_of_its_certificate(certificate: CertificateAndKey) -> None:
    async with served(certificate) as server:
        remote = await RemoteAgent.connect(server.address, tls=await pinned(server.address, fingerprint_in(certificate[0])))
        await remote.aclose()
    assert remote.card.name == "scripted"


@pytest.mark.anyio
async def test_a_certificate_that_an_authority_has_signed_can_be_pinned_too(tmp_path: Path) -> None:
    signed = Authority(tmp_path).issue("*.hub.example")
    async with served(signed) as server:
        remote = await RemoteAgent.connect(server.address, tls=await pinned(server.address, fingerprint_in(signed[0])))
        await remote.aclose()
    assert remote.card.name == "scripted"


@pytest.mark.anyio
async def test_who_is_paired_can_show_a_certificate_too(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    certificate, key = authority.issue("hub.example")
    own_certificate, own_key = authority.issue("phone")
    own = ClientTls(certificate=own_certificate, private_key=own_key)
    tls = ServerTls(certificate=certificate, private_key=key, client_roots=authority.certificate)
    async with serve(ScriptedAgent([]), "localhost:0", tls=tls) as server:
        pinned_too = await to_thread.run_sync(pinned_tls, parse_address(server.address), fingerprint_in(certificate), own)
        remote = await RemoteAgent.connect(server.address, tls=pinned_too)
        await remote.aclose()
        with pytest.raises(Unauthenticated, match="demands a certificate"):
            await RemoteAgent.connect(server.address, tls=await pinned(server.address, fingerprint_in(certificate)))


@pytest.mark.anyio
async def test_whoever_stands_between_has_another_certificate_and_is_refused(
    certificate: CertificateAndKey, other_certificate: CertificateAndKey
) -> None:
    async with served(other_certificate) as impostor:
        with pytest.raises(ConfigError, match="not the one that this worker was paired with"):
            await pinned(impostor.address, fingerprint_in(certificate[0]))


@pytest.mark.anyio
async def test_whoever_comes_between_later_never_sees_the_token(
    certificate: CertificateAndKey, other_certificate: CertificateAndKey
) -> None:
    async with served(certificate) as server:
        tls = await pinned(server.address, fingerprint_in(certificate[0]))
    async with served(other_certificate, tokens={"phone": TOKEN}) as impostor:
        remote = RemoteAgent(impostor.address, token=TOKEN, tls=tls)
        with pytest.raises(Unavailable):  # and not what a call with this token would get
            await remote.describe()
        await remote.aclose()


@pytest.mark.anyio
async def test_an_expired_certificate_says_so(expired_certificate: CertificateAndKey) -> None:
    async with served(expired_certificate) as server:
        with pytest.raises(ConfigError, match="expired"):
            await pinned(server.address, fingerprint_in(expired_certificate[0]))


@pytest.mark.anyio
async def test_a_server_without_tls_or_none_at_all_is_unavailable() -> None:
    async with serve(ScriptedAgent([]), "localhost:0") as server:
        with pytest.raises(Unavailable, match="does not speak TLS"):
            await pinned(server.address, FINGERPRINT)
    with pytest.raises(Unavailable, match="no TLS server answers"):
        await pinned(server.address, FINGERPRINT)
