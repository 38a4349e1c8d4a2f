"""Files of certificates and keys: what is wrong with one is said before gRPC gets it, and a running server follows them."""

import datetime
import logging
from collections.abc import Callable
from datetime import UTC
from pathlib import Path

import anyio
import pytest
from certificates import DAY, HOSTS, Authority, CertificateAndKey
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import BestAvailableEncryption, Encoding, PrivateFormat, load_pem_private_key
from hypothesis import given
from hypothesis import strategies as st

from nearfar.protocols import ConfigError, ScriptedAgent, Unauthenticated, Unavailable
from nearfar.protocols.client import RemoteAgent
from nearfar.protocols.server import Server, serve
from nearfar.protocols.tls import (
    ClientTls,
    RenewedCertificate,
    ServerTls,
    Validity,
    expiry,
    first_certificate,
    read_pair,
    read_roots,
    validity_of,
)

_KEY = ec.generate_private_key(ec.SECP256R1())
_NAME = x509.Name([])
_DER = (
    x509.CertificateBuilder(_NAME, _NAME, _KEY.public_key(), 1, datetime.datetime(2026, 1, 1), datetime.datetime(2026, 1, 2))
    .sign(_KEY, hashes.SHA256())
    .public_bytes(Encoding.DER)
)
_DATES = st.datetimes(datetime.datetime(1950, 1, 1), datetime.datetime(9999, 12, 30)).map(lambda date: date.replace(microsecond=0))


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


def garbage(folder: Path, text: bytes = b"not a certificate") -> Path:
    path = folder / "garbage.pem"
    path.write_bytes(text)
    return path


def encrypted(key: Path, folder: Path) -> Path:
    loaded = load_pem_private_key(key.read_bytes(), None)
    return garbage(folder, loaded.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(b"passphrase")))


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (lambda pair, folder: (folder / "absent.pem", pair[1]), "cannot read .*absent.pem: No such file"),
        (lambda pair, folder: (pair[0], folder / "absent.pem"), "cannot read .*absent.pem: No such file"),
        (lambda pair, folder: (folder, pair[1]), "cannot read .*: Is a directory"),
        (lambda pair, folder: (garbage(folder), pair[1]), "garbage.pem holds no certificate in PEM form"),
        (lambda pair, folder: (garbage(folder, b"\xff\x00\x80"), pair[1]), "garbage.pem holds no certificate in PEM form"),
        (lambda pair, folder: (garbage(folder, b""), pair[1]), "garbage.pem holds no certificate in PEM form"),
        (lambda pair, folder: (garbage(folder, pair[0].read_bytes()[:300]), pair[1]), "garbage.pem holds no certificate in PEM form"),
        (lambda pair, folder: (pair[0], garbage(folder)), "garbage.pem holds no private key in PEM form"),
        (lambda pair, folder: (pair[0], encrypted(pair[1], folder)), "the private key in .*garbage.pem is encrypted"),
        (lambda pair, folder: (pair[1], pair[0]), "-key.pem holds a private key and no certificate"),
    ],
    ids=["no certificate", "no key", "folder", "text", "bytes", "empty", "cut", "text as key", "encrypted", "swapped"],
)
def test_what_is_wrong_with_a_file_is_said(
    change: Callable[[CertificateAndKey, Path], CertificateAndKey], problem: str, authority: Authority, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=problem) as caught:
        read_pair(*change(authority.issue(*HOSTS), tmp_path))
    assert caught.value.hint


def test_a_key_that_does_not_fit_its_certificate_is_told_from_one_that_is_none(authority: Authority) -> None:
    (certificate, _), (_, key) = authority.issue(*HOSTS), authority.issue(*HOSTS)
    with pytest.raises(ConfigError, match="does not belong to the certificate in"):
        read_pair(certificate, key)


@pytest.mark.anyio
async def test_a_server_with_a_key_of_another_certificate_does_not_start(authority: Authority) -> None:
    tls = ServerTls(certificate=authority.issue(*HOSTS)[0], private_key=authority.issue(*HOSTS)[1])
    with pytest.raises(ConfigError, match="does not belong"):
        async with serve(ScriptedAgent([]), tls=tls):
            raise NotImplementedError


@pytest.mark.anyio
@pytest.mark.parametrize("place", [0, 1, 2], ids=["roots", "certificate", "key"])
async def test_a_client_says_which_of_its_files_is_unusable(place: int, authority: Authority, tmp_path: Path) -> None:
    files = [authority.certificate, *authority.issue("phone")]
    files[place] = garbage(tmp_path)
    tls = ClientTls(roots=files[0], certificate=files[1], private_key=files[2])
    with pytest.raises(ConfigError, match="garbage.pem"):
        await RemoteAgent.connect("127.0.0.1:9", tls=tls)


@pytest.mark.anyio
async def test_a_client_certificate_without_its_key_is_refused(authority: Authority) -> None:
    with pytest.raises(ConfigError, match="belong together"):
        await RemoteAgent.connect("127.0.0.1:9", tls=ClientTls(certificate=authority.issue("phone")[0]))


def test_a_file_with_a_key_is_no_file_of_authorities(authority: Authority) -> None:
    with pytest.raises(ConfigError, match="private key and no certificate"):
        read_roots(authority.issue("phone")[1])


@given(begins=_DATES, lifetime=st.timedeltas(datetime.timedelta(0), datetime.timedelta(days=4000)), serial=st.integers(1, 2**150))
def test_dates_are_read_as_they_were_written(begins: datetime.datetime, lifetime: datetime.timedelta, serial: int) -> None:
    ends = begins + min(datetime.timedelta(days=lifetime.days), datetime.datetime(9999, 12, 31) - begins)
    made = x509.CertificateBuilder(_NAME, _NAME, _KEY.public_key(), serial, begins, ends).sign(_KEY, hashes.SHA256())
    read = validity_of(made.public_bytes(Encoding.DER))
    assert (read.begins, read.ends) == (begins.replace(tzinfo=UTC), ends.replace(tzinfo=UTC))


@given(st.binary(max_size=80) | st.binary(max_size=80).map(lambda data: b"\x30\x82" + data))
def test_what_is_no_certificate_has_no_dates(data: bytes) -> None:
    with pytest.raises(ConfigError):
        validity_of(data)


@given(position=st.integers(0, 99), value=st.integers(0, 255))
def test_a_damaged_certificate_has_dates_or_is_refused(position: int, value: int) -> None:
    damaged = bytes((*_DER[:position], value, *_DER[position + 1 :]))
    try:
        validity_of(damaged)
    except ConfigError:
        return


def replace_files(files: CertificateAndKey, by: CertificateAndKey) -> None:
    for old, new in zip(files, by, strict=True):
        new.rename(old)


async def reaches(server: Server, roots: Path, files: CertificateAndKey | None = None) -> bool:
    """Whether a client that trusts `roots`, and shows the certificate in `files`, is served."""
    certificate, key = files or (None, None)
    try:
        remote = await RemoteAgent.connect(server.address, tls=ClientTls(roots=roots, certificate=certificate, private_key=key))
    except (Unavailable, Unauthenticated):
        return False
    await remote.aclose()
    return True


@pytest.mark.anyio
async def test_a_certificate_that_is_replaced_is_shown_without_a_restart(authority: Authority, tmp_path: Path) -> None:
    files = authority.issue(*HOSTS)
    (tmp_path / "next").mkdir()
    following = Authority(tmp_path / "next", "following")
    tls = ServerTls(certificate=files[0], private_key=files[1])
    with anyio.fail_after(30):
        async with serve(ScriptedAgent([]), "127.0.0.1:0", tls=tls) as server:
            former = await RemoteAgent.connect(server.address, tls=ClientTls(roots=authority.certificate))
            replace_files(files, following.issue(*HOSTS))
            assert await reaches(server, following.certificate)
            assert not await reaches(server, authority.certificate)
            await former.describe()  # a connection that stands is not touched
            await former.aclose()


@pytest.mark.anyio
async def test_a_certificate_that_is_half_replaced_changes_nothing(
    authority: Authority, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    files, others = authority.issue(*HOSTS), authority.issue(*HOSTS)
    with anyio.fail_after(30):
        async with serve(ScriptedAgent([]), "127.0.0.1:0", tls=ServerTls(certificate=files[0], private_key=files[1])) as server:
            others[0].rename(files[0])
            assert await reaches(server, authority.certificate)
            assert "the certificate stays as it was: the private key in" in caplog.text
            files[0].unlink()
            assert await reaches(server, authority.certificate)


@pytest.mark.anyio
async def test_authorities_that_are_replaced_decide_about_new_clients(authority: Authority, tmp_path: Path) -> None:
    files = authority.issue(*HOSTS)
    (tmp_path / "next").mkdir()
    following = Authority(tmp_path / "next", "following")
    roots = tmp_path / "clients.pem"
    roots.write_bytes(authority.certificate.read_bytes())
    with anyio.fail_after(30):
        tls = ServerTls(certificate=files[0], private_key=files[1], client_roots=roots)
        async with serve(ScriptedAgent([]), "127.0.0.1:0", tls=tls) as server:
            assert await reaches(server, authority.certificate, authority.issue("phone"))
            roots.write_bytes(following.certificate.read_bytes())
            assert await reaches(server, authority.certificate, following.issue("phone"))
            assert not await reaches(server, authority.certificate, authority.issue("phone"))


@pytest.mark.anyio
async def test_a_client_whose_certificate_is_renewed_shows_the_new_one(authority: Authority, tmp_path: Path) -> None:
    own, (certificate, key) = authority.issue("phone"), authority.issue(*HOSTS)
    (tmp_path / "next").mkdir()
    following = Authority(tmp_path / "next", "following")
    former, present = (
        ServerTls(certificate=certificate, private_key=key, client_roots=known.certificate) for known in (authority, following)
    )
    with anyio.fail_after(30):
        async with serve(ScriptedAgent([]), "127.0.0.1:0", tls=former) as server:
            tls = ClientTls(roots=authority.certificate, certificate=own[0], private_key=own[1])
            remote = await RemoteAgent.connect(server.address, tls=tls)
        async with serve(ScriptedAgent([]), server.address, tls=present):
            with pytest.raises(Unauthenticated, match="does not trust"):
                await remote.describe()
            replace_files(own, following.issue("phone"))
            await remote.describe()
            await remote.aclose()


@pytest.mark.anyio
async def test_files_of_a_client_that_are_half_replaced_change_nothing(authority: Authority, caplog: pytest.LogCaptureFixture) -> None:
    own, other = authority.issue("phone"), authority.issue("phone")
    (certificate, key) = authority.issue(*HOSTS)
    server_tls = ServerTls(certificate=certificate, private_key=key, client_roots=authority.certificate)
    with anyio.fail_after(30):
        async with serve(ScriptedAgent([]), "127.0.0.1:0", tls=server_tls) as server:
            tls = ClientTls(roots=authority.certificate, certificate=own[0], private_key=own[1])
            remote = await RemoteAgent.connect(server.address, tls=tls)
            other[0].rename(own[0])
            await remote.describe()
            assert "stays as it was: the private key in" in caplog.text
            await remote.aclose()


class Clock:
    def __init__(self) -> None:
        self.now = datetime.datetime.now(UTC)

    def __call__(self) -> datetime.datetime:
        return self.now


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    """What was warned of since the last call."""
    found = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    caplog.clear()
    return found


def test_a_server_warns_once_a_day_before_its_certificate_expires(authority: Authority, caplog: pytest.LogCaptureFixture) -> None:
    clock = Clock()
    certificate, key = authority.issue(*HOSTS, begin=-60 * DAY, end=30 * DAY)
    renewed = RenewedCertificate(certificate, key, None, now=clock)
    renewed.credentials()
    assert not warnings(caplog)
    clock.now += 10 * DAY
    renewed.before_handshake()
    renewed.before_handshake()
    (warning,) = warnings(caplog)
    assert "expires on" in warning
    assert "in 19 days" in warning
    clock.now += 21 * DAY
    renewed.before_handshake()
    (warning,) = warnings(caplog)
    assert "expired on" in warning
    replace_files((certificate, key), authority.issue(*HOSTS, end=90 * DAY))
    renewed.before_handshake()
    assert not warnings(caplog)


@pytest.mark.parametrize(("lifetime", "warned"), [(365, 21), (90, 21), (8, 2), (1, 0.25)])
def test_a_certificate_of_a_short_life_ends_soon_when_a_quarter_is_left(lifetime: float, warned: float) -> None:
    begins = datetime.datetime(2026, 1, 1, tzinfo=UTC)
    validity = Validity(begins, begins + lifetime * DAY)
    moment = validity.ends - warned * DAY
    assert validity.is_ending(moment)
    assert not validity.is_ending(moment - datetime.timedelta(seconds=1))


def test_the_last_day_of_a_certificate_is_told_by_the_minute() -> None:
    now = datetime.datetime(2026, 3, 1, 12, tzinfo=UTC)
    assert expiry(now + datetime.timedelta(hours=3), now) == "expires on 2026-03-01 15:00 UTC"
    assert expiry(now + 2.5 * DAY, now) == "expires on 2026-03-04, in 2 days"
    assert expiry(now, now) == "expired on 2026-03-01"


def test_the_first_of_several_certificates_is_the_one_that_is_shown(authority: Authority) -> None:
    leaf = authority.issue(*HOSTS)[0].read_bytes()
    assert first_certificate(b"\n" + leaf + authority.certificate.read_bytes()) == first_certificate(leaf)
