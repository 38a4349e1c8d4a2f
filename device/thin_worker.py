"""A worker for phones: lends the llama-server on this device to a hub, through one outgoing connection.

    python -m nearfar.device.thin_worker --pairing-file ~/.nearfar-pairing

It needs grpcio and protobuf and nothing else of what nearfar depends on, since no other wheels exist for phones. `docs/devices.md` tells
how to set one up.
"""

import argparse
import asyncio
import logging
import os
import signal
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from ..protocols.address import Pairing, read_pairing, read_secret
from ..protocols.channel import client_tls
from ..protocols.errors import ConfigError, NearfarError, UserError
from .thin.attachment import ThinWorker, serve
from .thin.llama_server import LlamaServer
from .thin.phone import Phone

TOKEN_VARIABLE = "NEARFAR_TOKEN"
_THREADS = 64
"""Each step under way waits for llama-server in a thread of its own."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Serve until Ctrl-C or SIGTERM. Returns the exit code: 0 when stopped, 2 where the options or the token are at fault, 1 otherwise."""
    options = parser().parse_args(arguments)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s", datefmt="%H:%M:%S")
    try:
        asyncio.run(_run(_worker(options)))
    except NearfarError as error:
        sys.stderr.write(f"error: {error}\n")
        return 2 if isinstance(error, UserError) else 1
    except (KeyboardInterrupt, asyncio.CancelledError):
        return 130
    return 0


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    made = argparse.ArgumentParser(
        prog="python -m nearfar.device.thin_worker",
        description="Lend the llama-server on this device to a hub.",
        epilog=f"The token may also stand in the environment variable {TOKEN_VARIABLE}; it is never taken from the command line.",
    )
    made.add_argument("hub", nargs="?", metavar="HOST:PORT", help="address of the hub; not needed with --pairing-file")
    made.add_argument("--pairing-file", metavar="FILE", help="the line that `nearfar worker pair` shows; - asks for it")
    made.add_argument("--token-file", metavar="FILE", type=Path, help="the token, in a file that only you can read")
    made.add_argument("--fingerprint", metavar="sha256:...", help="of the hub's certificate, if no public authority has signed it")
    made.add_argument("--client-certificate", metavar="FILE", type=Path, help="this device's own certificate, if the hub demands one")
    made.add_argument("--client-key", metavar="FILE", type=Path, help="the private key of the own certificate")
    made.add_argument("--name", help="what the worker's agent is called (default: the pairing's name, or phone)")
    made.add_argument("--server", metavar="URL", default="http://127.0.0.1:8080", help="the llama-server (default: %(default)s)")
    made.add_argument("--server-key-file", metavar="FILE", type=Path, help="the key that llama-server was started with, if any")
    return made


def _worker(options: argparse.Namespace) -> ThinWorker:
    """Raises `ConfigError` if the options contradict each other or are not enough."""
    hub = _hub(options)
    key = None if options.server_key_file is None else read_secret(options.server_key_file)
    own = client_tls(None, options.client_certificate, options.client_key)
    name = options.name or hub.name or "phone"
    return ThinWorker(server=LlamaServer(options.server, key=key), hub=hub, name=name, read_state=Phone(), own=own)


def _hub(options: argparse.Namespace) -> Pairing:
    if (options.hub is None) == (options.pairing_file is None):
        raise ConfigError("the hub is missing, or given twice", hint="give either HOST:PORT or --pairing-file")
    if options.pairing_file is not None:
        return read_pairing(options.pairing_file)
    token = read_secret(options.token_file) if options.token_file else os.environ.get(TOKEN_VARIABLE, "")
    if not token:
        raise ConfigError("there is no token", hint=f"give --token-file or set {TOKEN_VARIABLE}")
    return Pairing(address=options.hub, token=token, fingerprint=options.fingerprint)


async def _run(worker: ThinWorker) -> None:
    """Serve until a signal comes: the first lets the steps under way finish, the second does not."""
    loop, stopping = asyncio.get_running_loop(), asyncio.Event()
    loop.set_default_executor(ThreadPoolExecutor(_THREADS))
    task = asyncio.create_task(serve(worker, stopping))

    def stop() -> None:
        if stopping.is_set():
            task.cancel()
        stopping.set()

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop)
    await task


if __name__ == "__main__":
    sys.exit(main())
