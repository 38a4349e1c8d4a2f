"""The shipped configurations of HAProxy and nginx, started on loopback in front of a server."""

import asyncio
import shutil
import socket
import tempfile
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final, NamedTuple

import anyio

DEPLOY: Final = Path(__file__).parents[2] / "deploy"
_SECONDS: Final = 10.0
"""Until a proxy listens."""


class Pem(NamedTuple):
    """Files of a certificate for `localhost` and 127.0.0.1."""

    certificate: Path
    key: Path


class Kind(NamedTuple):
    """A proxy."""

    program: str
    configuration: str

    @property
    def path(self) -> str | None:
        """The program's path; None where it is not installed."""
        return shutil.which(self.program) or shutil.which(self.program, path="/usr/sbin:/usr/local/sbin")


KINDS: Final = {"haproxy": Kind("haproxy", "haproxy.cfg"), "nginx": Kind("nginx", "nginx.conf")}


@asynccontextmanager
async def proxied(name: str, backend: str, pem: Pem) -> AsyncIterator[str]:
    """Run the proxy `name` as it is shipped, but for addresses and paths, in front of `backend` (`host:port`); yields its address."""
    kind = KINDS[name]
    assert kind.path is not None, "the caller has looked"
    with tempfile.TemporaryDirectory() as folder:
        address = f"127.0.0.1:{_free_port()}"
        file = Path(folder) / kind.configuration
        file.write_text(_configured(name, Path(folder), {"0.0.0.0:443": address, "127.0.0.1:7443": backend}, pem))
        options = ["-f", str(file), "-db"] if name == "haproxy" else ["-c", str(file), "-p", folder, "-g", _FOREGROUND]
        process = await asyncio.create_subprocess_exec(kind.path, *options, stderr=asyncio.subprocess.DEVNULL)
        try:
            with anyio.fail_after(_SECONDS):
                await _listening(address, process)
            yield address
        finally:
            if process.returncode is None:
                process.terminate()
            await process.wait()


_FOREGROUND: Final = "daemon off; master_process off; pid nginx.pid;"


def _configured(name: str, folder: Path, addresses: Mapping[str, str], pem: Pem) -> str:
    text = (DEPLOY / KINDS[name].configuration).read_text()
    paths = {"/etc/nearfar/chain.pem": str(pem.certificate), "/etc/nearfar/key.pem": str(pem.key)}
    if name == "haproxy":
        both = folder / "gateway.pem"
        both.write_bytes(pem.certificate.read_bytes() + pem.key.read_bytes())
        paths = {"/etc/nearfar/gateway.pem": str(both)}
    for shipped, here in (*addresses.items(), *paths.items()):
        assert shipped in text, f"{KINDS[name].configuration} names no {shipped}"
        text = text.replace(shipped, here)
    return text


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
        return port


async def _listening(address: str, process: asyncio.subprocess.Process) -> None:
    host, _, port = address.rpartition(":")
    while True:
        assert process.returncode is None, "the proxy has ended"
        try:
            _, writer = await asyncio.open_connection(host, int(port))
        except ConnectionRefusedError:
            await asyncio.sleep(0.02)
            continue
        writer.close()
        return
