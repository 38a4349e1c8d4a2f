"""A model hub's redirects lead to the public internet, or to where the configuration says, and nowhere else."""

import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import closing, nullcontext, suppress
from ipaddress import ip_address
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
from fake_hub import REPOSITORY, FakeHub, fake_hub
from tiny_gguf import TinyModel, write_tiny_gguf

from nearfar.device.store import ModelStore, download
from nearfar.device.store.download import PublicTransport, is_public
from nearfar.device.store.hub import HubOptions
from nearfar.protocols import ConfigError, Unavailable
from nearfar.protocols.tls import ensure_certificate

REFERENCE = f"hf:{REPOSITORY}:Q8_0"
PUBLIC = "cdn.example"
HIDDEN = ("10.0.0.7", "169.254.169.254", "fd00::7")


@pytest.fixture(autouse=True)
def no_proxies(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[FakeHub]:
    with fake_hub() as hub:
        hub.files["model-Q8_0.gguf"] = write_tiny_gguf(tmp_path / "tiny.gguf", TinyModel()).read_bytes()
        yield hub


@pytest.fixture
def lookups(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names that were looked up. The loopback address of the fake hub counts as a public one; `rebound` resolves to it once only."""
    asked: list[str] = []
    known = {PUBLIC: ["127.0.0.1"], "both.example": ["127.0.0.1", "10.0.0.7"], "hidden.example": ["fd00::7"]}
    resolve = socket.getaddrinfo

    def answer(host: Any, port: Any, *arguments: Any, **options: Any) -> Any:  # noqa: ANN401 - as the system's own
        asked.append(str(host))
        if host == "rebound.example":
            found = ["127.0.0.1"] if asked.count(host) == 1 else ["10.0.0.7"]
        else:
            found = known.get(host, [])
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (one, port)) for one in found] or resolve(host, port, *arguments, **options)

    monkeypatch.setattr(socket, "getaddrinfo", answer)
    monkeypatch.setattr(download, "is_public", lambda address: str(address) == "127.0.0.1" or is_public(address))
    return asked


def store_of(folder: Path, hub: FakeHub, *hosts: str) -> ModelStore:
    return ModelStore(folder / "nearfar", HubOptions(endpoint=hub.endpoint, hosts=hosts, cache=folder / "hub", pause=0))


def port_of(hub: FakeHub) -> int | None:
    return urlsplit(hub.endpoint).port


@pytest.mark.parametrize(
    "place",
    [
        *(f"http://[{one}]" if ":" in one else f"http://{one}" for one in HIDDEN),
        *(
            "http://127.0.0.1:1",
            "http://localhost:1",
            "http://0.0.0.0",
            "http://[::1]",
            "http://[::ffff:10.0.0.7]",
            "http://[64:ff9b::a00:7]",
        ),
        *(
            "http://100.64.0.1",
            "http://2130706433:1",
            "http://[fe80::1]",
            "http://224.0.0.1",
            "https://192.168.0.1",
            "http://[2002:a00:7::]",
        ),
    ],
)
def test_a_redirect_into_this_network_is_refused(tmp_path: Path, hub: FakeHub, place: str) -> None:
    hub.redirects_to = place
    with pytest.raises(Unavailable, match="not on the public internet"):
        store_of(tmp_path, hub).pull(REFERENCE)
    assert hub.ranges == []


@pytest.mark.parametrize("host", ["both.example", "hidden.example"])
def test_the_addresses_of_a_name_decide_and_not_the_name(tmp_path: Path, hub: FakeHub, host: str, lookups: list[str]) -> None:
    hub.redirects_to = f"http://{host}:{port_of(hub)}"
    with pytest.raises(Unavailable, match=host):
        store_of(tmp_path, hub).pull(REFERENCE)


@pytest.mark.parametrize("host", [PUBLIC, "rebound.example"])
def test_the_address_that_was_checked_is_the_one_that_is_asked(tmp_path: Path, hub: FakeHub, host: str, lookups: list[str]) -> None:
    hub.redirects_to = f"http://{host}:{port_of(hub)}"
    store_of(tmp_path, hub).pull(REFERENCE)
    assert len(hub.ranges) == 1
    assert lookups.count(host) == 1, "nobody looks it up again, to be told something else"


def test_a_host_that_the_configuration_names_may_be_on_this_network(tmp_path: Path, hub: FakeHub) -> None:
    hub.redirects_to = f"http://localhost:{port_of(hub)}"
    for number, (named, may) in enumerate([("localhost", True), (f"localhost:{port_of(hub)}", True), ("localhost:1", False)]):
        store = store_of(tmp_path / str(number), hub, named)
        if may:
            assert store.pull(REFERENCE).name
        else:
            with pytest.raises(Unavailable):
                store.pull(REFERENCE)


def test_an_address_of_ipv6_may_be_named_with_and_without_brackets() -> None:
    for named in ("::1", "[::1]", "[::1]:1"):
        with closing(PublicTransport(httpx.URL("http://hub.example"), (named,))) as transport, pytest.raises(httpx.ConnectError):
            transport.handle_request(httpx.Request("GET", "http://[::1]:1/content/model"))


@pytest.mark.parametrize(
    ("variable", "value", "told"),
    [
        ("SSL_CERT_FILE", "/nowhere/authorities.pem", "SSL_CERT_FILE"),
        ("http_proxy", "carrier-pigeon://me:secret@127.0.0.1:1", "HTTP_PROXY"),
        ("http_proxy", "http://me:secret@127.0.0.1:port", "HTTP_PROXY"),
    ],
)
def test_a_setting_of_the_environment_that_cannot_be_used_is_told(
    tmp_path: Path, hub: FakeHub, monkeypatch: pytest.MonkeyPatch, variable: str, value: str, told: str
) -> None:
    monkeypatch.setenv(variable, value)
    monkeypatch.setenv("no_proxy", "")
    with pytest.raises(ConfigError, match="settings of the environment cannot be used") as raised:
        store_of(tmp_path, hub).pull(REFERENCE)
    assert told in raised.value.hint
    assert "secret" not in str(raised.value)


def test_https_stays_https_whoever_is_redirected_to() -> None:
    transport = PublicTransport(httpx.URL("https://hub.example"), ())
    for url, told in (
        ("http://hub.example/api", "from https to http"),
        ("http://cdn.example/x", "from https to http"),
        ("https://10.0.0.7", "public internet"),
    ):
        with pytest.raises(Unavailable, match=told):
            transport.handle_request(httpx.Request("GET", url))


def test_a_name_in_the_configuration_keeps_https_too() -> None:
    transport = PublicTransport(httpx.URL("https://hub.example"), ("files.corp",))
    with pytest.raises(Unavailable, match="from https to http"):
        transport.handle_request(httpx.Request("GET", "http://files.corp/x"))


def test_behind_a_proxy_what_is_written_out_is_checked_and_names_are_the_proxys(
    tmp_path: Path, hub: FakeHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    transport = PublicTransport(httpx.URL("http://hub.example"), ())
    monkeypatch.setenv("http_proxy", hub.endpoint)
    with pytest.raises(Unavailable, match="not on the public internet"):
        transport.handle_request(httpx.Request("GET", "http://10.0.0.7/content/model-Q8_0.gguf"))
    response = transport.handle_request(httpx.Request("GET", "http://nowhere.example/content/model-Q8_0.gguf"))
    assert response.status_code == 200
    response.close()
    transport.close()
    monkeypatch.setenv("no_proxy", "nowhere.example")
    with pytest.raises(httpx.ConnectError):
        transport.handle_request(httpx.Request("GET", "http://nowhere.example/content/model-Q8_0.gguf"))


@pytest.mark.parametrize(("host", "is_served"), [(PUBLIC, True), ("rebound.example", False)])
def test_over_https_the_certificate_is_that_of_the_name_and_not_of_the_address(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lookups: list[str], host: str, is_served: bool
) -> None:
    ensure_certificate(tmp_path / "certificate.pem", tmp_path / "key.pem", [PUBLIC])
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "certificate.pem"))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "certificate.pem", tmp_path / "key.pem")
    with fake_hub() as hub:
        hub.files["model"] = b"weights"
        listening = socket.create_server(("127.0.0.1", 0))
        server = _TlsServer(context, listening, hub)
        transport = PublicTransport(httpx.URL("https://hub.example"), ())
        url = f"https://{host}:{listening.getsockname()[1]}/content/model"
        with (
            server,
            closing(transport),
            nullcontext() if is_served else pytest.raises(httpx.ConnectError, match="CERTIFICATE_VERIFY_FAILED"),
        ):
            assert httpx.Client(transport=transport).get(url).text == "weights"


class _TlsServer:
    """Speaks TLS in front of one connection to a fake hub."""

    def __init__(self, context: ssl.SSLContext, listening: socket.socket, hub: FakeHub) -> None:
        self._thread = threading.Thread(target=self._serve, args=(context, listening, port_of(hub)))

    def _serve(self, context: ssl.SSLContext, listening: socket.socket, port: int | None) -> None:
        with listening, suppress(ssl.SSLError, ConnectionError):
            plain, _ = listening.accept()
            with context.wrap_socket(plain, server_side=True) as caller, socket.create_connection(("127.0.0.1", port or 0)) as behind:
                behind.sendall(caller.recv(65536).replace(b"Connection: keep-alive", b"Connection: close"))
                while answer := behind.recv(65536):
                    caller.sendall(answer)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._thread.join(10)


@pytest.mark.parametrize("address", ["93.184.216.34", "2606:4700::1111", "64:ff9b::5db8:d822", "2002:5db8:d822::"])
def test_public_addresses_are_public(address: str) -> None:
    assert is_public(ip_address(address))


@pytest.mark.parametrize(
    "address", [*HIDDEN, "2002:a00:7::", "64:ff9b:1::1", "2001:db8::1", "fec0::7", "198.18.0.1", "::", "255.255.255.255", "240.0.0.1"]
)
def test_others_are_not(address: str) -> None:
    assert not is_public(ip_address(address))
