"""The HTTP connections of one agent to its provider."""

import ssl
from dataclasses import dataclass

import anyio
import httpx

from ..protocols.address import Address

_OF_A_POOL = 16


@dataclass(slots=True)
class Pool:
    """A client, and how many of its connections requests have taken."""

    client: httpx.AsyncClient
    taken: int = 0


class Connections:
    """HTTP clients that have `most` connections open between them; further requests wait.

    httpcore looks at all connections of a pool for each of its idle ones, with every request: a thousand in one pool would take seconds
    of computing per request. So there are pools of 16, each opened when those before it are full.
    """

    def __init__(self, base_url: str, most: int, timeout: httpx.Timeout) -> None:
        self._base_url = base_url
        self._timeout = timeout
        self._free = anyio.Semaphore(most)
        self._tls: ssl.SSLContext | None = None
        self._pools: list[Pool] = []

    async def take(self) -> Pool:
        """Wait for a connection, and return the pool that has it; give it back when its response is closed."""
        await self._free.acquire()
        pool = next((pool for pool in self._pools if pool.taken < _OF_A_POOL), None) or self._open()
        pool.taken += 1
        return pool

    def give_back(self, pool: Pool) -> None:
        """Let another request have the connection."""
        pool.taken -= 1
        self._free.release()

    async def aclose(self) -> None:
        """Close all connections."""
        for pool in self._pools:
            await pool.client.aclose()

    def _open(self) -> Pool:
        self._tls = self._tls or httpx.create_ssl_context()  # reading the system's authorities takes longer than anything else here
        client = httpx.AsyncClient(
            headers={"User-Agent": "nearfar"},
            verify=self._tls,
            timeout=self._timeout,
            limits=httpx.Limits(max_connections=_OF_A_POOL, max_keepalive_connections=_OF_A_POOL),
            follow_redirects=False,
            mounts=_unproxied(self._base_url),
        )
        self._pools.append(Pool(client))
        return self._pools[-1]


def _unproxied(base_url: str) -> dict[str, None]:
    """What httpx must not send through a proxy from the environment: what is meant for this machine."""
    host = httpx.URL(base_url).host
    return {f"all://{'[' + host + ']' if ':' in host else host}": None} if Address(host=host).is_local else {}
