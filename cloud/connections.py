"""The HTTP connections of one agent to its provider, or to a near server."""

import ssl
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.cookiejar import CookieJar, DefaultCookiePolicy

import anyio
import httpx

from ..protocols import ConfigError
from ..protocols.address import is_this_machine
from ..protocols.secrets import quote
from .near_server import IpAddress, near_addresses

_OF_A_POOL = 16
_HEADERS = {"User-Agent": "nearfar", "Accept-Encoding": "identity"}  # a packed kilobyte may unpack to gigabytes
_BOUNDED_PACKINGS = frozenset(("gzip", "deflate"))
"""Content encodings that unpack a piece to a thousand times its size at most."""
_PACKINGS = _BOUNDED_PACKINGS | {"br", "zstd"}
"""Content encodings that httpx unpacks, even if not requested; it treats other words, such as "none", as no encoding."""


class NearTransport(httpx.AsyncBaseTransport):
    """Sends requests to addresses that may see private text, and to no others.

    The address that was checked is the one that is connected to, so that a name that resolves to another one a moment later gains nothing.
    Proxies of the environment are not used. Raises `ConfigError` for any other address; `trusted` is that of `NearServerConfig`.
    """

    def __init__(self, base_url: str, *, trusted: bool) -> None:
        # Reading the system's authorities takes longer than a whole exchange with a server on this machine.
        verify = tls_context() if base_url.startswith("https:") else False
        self._is_encrypted = verify is not False
        self._trusted = trusted
        limits = httpx.Limits(max_connections=_OF_A_POOL, max_keepalive_connections=_OF_A_POOL)
        self._transport = httpx.AsyncHTTPTransport(verify=verify, limits=limits, trust_env=False)

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        url = request.url
        if (url.scheme == "https") is not self._is_encrypted:
            raise ConfigError(f"the near server at {url.host} was to be reached in another way than by {url.scheme}")
        *others, last = await near_addresses(url.scheme, url.host, url.port, trusted=self._trusted)
        for address in others:
            try:
                return await self._transport.handle_async_request(at_address(request, address))
            except httpx.ConnectError:
                continue  # many servers listen at one of the two addresses of localhost only
        return await self._transport.handle_async_request(at_address(request, last))

    async def aclose(self) -> None:
        await self._transport.aclose()


def near_client(base_url: str, timeout: httpx.Timeout, *, trusted: bool) -> httpx.AsyncClient:
    """Return a client for a near server; see `NearTransport`. Raise `ConfigError` if the TLS settings cannot be used."""
    transport = NearTransport(base_url, trusted=trusted)
    return httpx.AsyncClient(
        headers=_HEADERS, cookies=_no_cookies(), transport=transport, timeout=timeout, follow_redirects=False, trust_env=False
    )


def provider_client(base_url: str, timeout: httpx.Timeout, tls: ssl.SSLContext) -> httpx.AsyncClient:
    """Return a client for a provider, through the environment's proxies. Raise `ConfigError` if they cannot be used."""
    with _usable("proxy settings", "correct or unset ALL_PROXY, HTTPS_PROXY, HTTP_PROXY and NO_PROXY; SOCKS: pip install 'httpx[socks]'"):
        return httpx.AsyncClient(
            headers=_HEADERS,
            cookies=_no_cookies(),
            verify=tls,
            timeout=timeout,
            limits=httpx.Limits(max_connections=_OF_A_POOL, max_keepalive_connections=_OF_A_POOL),
            follow_redirects=False,
            mounts=_unproxied(base_url),
        )


def unpacks_bounded(encoding: str) -> bool:
    """Return whether a body so encoded unpacks to a bounded size: twice packed, a kilobyte may stand for gigabytes."""
    packings = [word for word in (part.strip().lower() for part in encoding.split(",")) if word in _PACKINGS]
    return len(packings) <= 1 and _BOUNDED_PACKINGS.issuperset(packings)


def tls_context() -> ssl.SSLContext:
    """Return the TLS settings of the system and the environment. Raise `ConfigError` if they cannot be used."""
    with _usable("TLS settings", "correct or unset SSL_CERT_FILE, SSL_CERT_DIR and SSLKEYLOGFILE"):
        return httpx.create_ssl_context()


def at_address(request: httpx.Request, address: IpAddress) -> httpx.Request:
    """Return the request for an IP address, with the host's name in its headers and for the check of the certificate."""
    extensions = {**request.extensions, "sni_hostname": request.url.host}
    url = request.url.copy_with(host=str(address))
    return httpx.Request(request.method, url, headers=request.headers, stream=request.stream, extensions=extensions)


def _no_cookies() -> CookieJar:
    """Return a jar that keeps no cookie: several callers share the connections."""
    return CookieJar(DefaultCookiePolicy(allowed_domains=()))


@dataclass(slots=True)
class Pool:
    """A client, and the number of its connections in use."""

    client: httpx.AsyncClient
    taken: int = 0


class Connections:
    """HTTP clients with at most `most` open connections in total; further requests wait.

    With every request, httpcore looks at all connections of a pool for each idle one: a thousand in one pool would take seconds of
    computing per request. So there are pools of 16, each opened when the earlier ones are full.
    """

    def __init__(self, base_url: str, most: int, timeout: httpx.Timeout, *, open_client: Callable[[], httpx.AsyncClient] | None) -> None:
        """`open_client`: opens each client; None: for a provider, through the environment's proxies."""
        self._base_url = base_url
        self._timeout = timeout
        self._open_client = open_client or self._provider_client
        self._free = anyio.Semaphore(most, fast_acquire=True)
        self._tls: ssl.SSLContext | None = None
        self._pools: list[Pool] = []

    async def take(self) -> Pool:
        """Wait for a connection, and return its pool; call `give_back` when the response is closed.

        Raise `ConfigError` if the environment's proxy or TLS options cannot be used.
        """
        await self._free.acquire()
        try:
            pool = next((pool for pool in self._pools if pool.taken < _OF_A_POOL), None) or self._open()
        except ConfigError:
            self._free.release()
            raise
        pool.taken += 1
        return pool

    def give_back(self, pool: Pool) -> None:
        """Release the connection for another request."""
        pool.taken -= 1
        self._free.release()

    async def aclose(self) -> None:
        """Close all connections."""
        for pool in self._pools:
            await pool.client.aclose()

    def _open(self) -> Pool:
        self._pools.append(Pool(self._open_client()))
        return self._pools[-1]

    def _provider_client(self) -> httpx.AsyncClient:
        if self._tls is None:  # reading the system's authorities takes longer than anything else here
            self._tls = tls_context()
        return provider_client(self._base_url, self._timeout, self._tls)


@contextmanager
def _usable(settings: str, hint: str) -> Iterator[None]:
    """Raise `ConfigError` if httpx cannot use the environment's values."""
    try:
        yield
    except (ImportError, ValueError, OSError, httpx.InvalidURL) as error:
        raise ConfigError(f"the {settings} of the environment cannot be used: {quote(str(error))}", hint=hint) from None


def _unproxied(base_url: str) -> dict[str, None]:
    """Return httpx mounts that keep requests to this machine away from a proxy of the environment."""
    host = httpx.URL(base_url).host
    return {f"all://{'[' + host + ']' if ':' in host else host}": None} if is_this_machine(host) else {}
