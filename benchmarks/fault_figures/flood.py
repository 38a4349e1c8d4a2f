"""Good calls during a flood, behind the configurations of HAProxy and nginx in `deploy/`.

The flood comes without a token from another address than the good calls (127.0.0.3): streams that are opened and reset as fast as one
process can write them or 36,000 in a second, streams that are opened and left, whole calls, pings, settings, and 900 connections that say
nothing. Each good call is a connection of its own with TLS, a token and a step, and has five seconds. This process may have 1,024 files
open, as is usual.
"""

import asyncio
import resource
import sys
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

from nearfar.protocols import Message, NearfarError, ScriptedAgent, Sensitivity, StepRequest, complete
from nearfar.protocols.client import RemoteAgent
from nearfar.protocols.server import serve
from nearfar.protocols.tls import ClientTls, ServerTls, ensure_certificate

from .flood_worker import FLOODS
from .proxies import KINDS, Pem, proxied

SHAPES: Final = (*FLOODS, "idle")
_CALLS: Final = 25
_FILES: Final = 1024
_TOKEN: Final = "the-token-of-the-benchmark-that-is-long-enough"
_REQUEST: Final = StepRequest(messages=(Message.user("Capital of France?"),), sensitivity=Sensitivity.PUBLIC, timeout=5)


def figures(data: Path, *, quick: bool) -> dict[str, Any]:
    """`good_calls_under_flood`: the smallest share of good calls that were answered, of both proxies and all floods. No `data`."""
    missing = [name for name, kind in KINDS.items() if kind.path is None]
    if missing:
        return {"good_calls_under_flood": None, "good_calls_missing": f"{' and '.join(missing)} not installed"}
    files, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(_FILES, files), most))
    try:
        return asyncio.run(_figures(calls=5 if quick else _CALLS))
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (files, most))


async def _figures(*, calls: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        pem = Pem(Path(folder, "certificate.pem"), Path(folder, "key.pem"))
        ensure_certificate(*pem, ("localhost", "127.0.0.1"))
        behind = {f"{name}, {shape}": await _behind(name, shape, pem, calls) for name in KINDS for shape in SHAPES}
        bare = {shape: await _bare(shape, pem, calls) for shape in SHAPES}
    return {"good_calls_under_flood": min(behind.values()), "good_calls_by_case": behind, "good_calls_without_proxy": bare}


async def _behind(name: str, shape: str, pem: Pem, calls: int) -> float:
    async with (
        serve(ScriptedAgent(lambda _: "Paris."), "127.0.0.1:0", tokens={"laptop": _TOKEN}) as server,
        proxied(name, server.address, pem) as address,
    ):
        return await _good_share(address, shape, pem, calls)


async def _bare(shape: str, pem: Pem, calls: int) -> float:
    tls = ServerTls(certificate=pem.certificate, private_key=pem.key)
    async with serve(ScriptedAgent(lambda _: "Paris."), "127.0.0.1:0", tokens={"laptop": _TOKEN}, tls=tls) as server:
        return await _good_share(server.address, shape, pem, calls)


async def _good_share(address: str, shape: str, pem: Pem, calls: int) -> float:
    """The share of good calls that are answered while the flood goes on."""
    async with _flood(address, shape):
        answered = [await _is_answered(address, pem) for _ in range(calls)]
    return sum(answered) / len(answered)


async def _is_answered(address: str, pem: Pem) -> bool:
    remote = RemoteAgent(address, token=_TOKEN, tls=ClientTls(roots=pem.certificate))
    try:
        return (await complete(remote, _REQUEST)).text == "Paris."
    except NearfarError:
        return False
    finally:
        await remote.aclose()


@asynccontextmanager
async def _flood(address: str, shape: str) -> AsyncIterator[None]:
    host, _, port = address.rpartition(":")
    command = [sys.executable, str(Path(__file__).with_name("flood_worker.py")), host, port, shape]
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(*command, stdin=pipe, stdout=pipe, stderr=asyncio.subprocess.DEVNULL)
    assert process.stdin is not None, "it is a pipe"
    assert process.stdout is not None, "it is a pipe"
    try:
        await process.stdout.readline()
        await asyncio.sleep(1)  # until the flood is at its height
        yield
    finally:
        process.stdin.close()
        await process.wait()
