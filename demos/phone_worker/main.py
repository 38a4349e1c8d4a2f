"""A phone as a worker: it dials out to this machine and lends its model; private tasks may go there, because it is yours.

A second process stands in for the phone. It pairs, dials, and leaves as a phone does, over TLS.
"""

import asyncio
import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from nearfar import Hybrid, NearfarError, tool

NEAR = os.environ.get("NEARFAR_NEAR", "near")  # the model on the phone
FAR = os.environ.get("NEARFAR_FAR", "far")  # this machine has no model of its own
HUB = """
[hub]
address = "127.0.0.1:{port}"
certificate = "hub.pem"
key = "hub-key.pem"
[hub.workers.phone]
trust = "near"                  # your own device: private text may go there
"""
NEARFAR = (sys.executable, "-m", "nearfar")
QUESTION = "What is the employer of Mira Holm?"


@tool(effect="read", source="internal_tool")
def open(title: str, section: str) -> str:
    """A section of the passage with this exact title."""
    return {("Mira Holm", "employer"): "Orbix Foods"}.get((title, section), "not stated")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@contextmanager
def running(*command: str) -> Iterator[subprocess.Popen[str]]:
    """Run a command of nearfar in a process of its own, and wait for the line that says it is ready."""
    with subprocess.Popen([*NEARFAR, *command, "--json"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        try:
            json.loads(process.stdout.readline())
            yield process
        finally:
            process.terminate()


def pair(hub: Path) -> Path:
    """Make a token and a certificate for the phone. On a terminal, `nearfar worker pair phone` shows them as a QR code."""
    command = [*NEARFAR, "worker", "pair", "phone", "--config", str(hub), "--json"]
    uri = json.loads(subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout)["uri"]
    secret = hub.with_name("pairing")
    secret.touch(mode=0o600)
    secret.write_text(uri)
    print("paired: the phone knows the hub's address, its certificate's fingerprint, and a token of its own")
    return secret


async def ask(hybrid: Hybrid, sensitivity: str) -> None:
    try:
        result = await hybrid.run(QUESTION, sensitivity=sensitivity)
    except NearfarError as error:
        print(f"  {sensitivity} task: not served ({type(error).__name__}); only the far model is left, and it may not know")
    else:
        print(f"  {sensitivity} task: {result.text}, says {result.agent}, a {result.side} agent")


async def main(hub: Path) -> None:
    hub.write_text(HUB.format(port=free_port()))
    secret = pair(hub)
    with running("serve", "hub", "--config", str(hub)):
        async with Hybrid.from_config(hub, far=FAR, tools=[open]) as hybrid:
            with running("worker", "attach", "--pairing-file", str(secret), "--near", NEAR) as phone:
                print("the phone is attached")
                await ask(hybrid, "private")
                await ask(hybrid, "public")
                phone.terminate()
                phone.wait()
            print("the phone has left")
            await ask(hybrid, "private")
            await ask(hybrid, "public")


if __name__ == "__main__":
    with TemporaryDirectory() as folder:
        asyncio.run(main(Path(folder) / "hub.toml"))
