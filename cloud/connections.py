"""The HTTP connections of one agent to its provider."""

import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.cookiejar import CookieJar, DefaultCookiePolicy

import anyio
import httpx

from ..protocols import ConfigError
from ..protocols.address import is_this_machine
from ..protocols.secrets import quote

_OF_A_POOL = 16


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

    def __init__(self, base_url: str, most: int, timeout: httpx.Timeout) -> None:
        self._base_url = base_url
        self._timeout = timeout
        self._free = anyio.Semaphore(most)
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
        if self._tls is None:  # reading the system's authorities takes longer than anything else here
            with _usable("TLS settings", "correct or unset SSL_CERT_FILE, SSL_CERT_DIR and SSLKEYLOGFILE"):
                self._tls = httpx.create_ssl_context()
        with _usable(
            "proxy settings", "correct or unset ALL_PROXY, HTTPS_PROXY, HTTP_PROXY and NO_PROXY; SOCKS: pip install 'httpx[socks]'"
        ):
            client = httpx.AsyncClient(
                headers={"User-Agent": "nearfar", "Accept-Encoding": "identity"},  # a packed kilobyte may unpack to gigabytes
                cookies=CookieJar(DefaultCookiePolicy(allowed_domains=())),  # none: strangers share the connections
                verify=self._tls,
                timeout=self._timeout,
                limits=httpx.Limits(max_connections=_OF_A_POOL, max_keepalive_connections=_OF_A_POOL),
                follow_redirects=False,
                mounts=_unproxied(self._base_url),
            )
        self._pools.append(Pool(client))
        return self._pools[-1]


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
