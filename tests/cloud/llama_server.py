"""A real llama.cpp HTTP server (llama-cpp-python's) in a process of its own, on the shipped near model."""

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx

import nearfar.device

MODEL = Path(nearfar.device.__file__).parent / "models" / "near.gguf"
_START_SECONDS = 90.0
_SERVE = """
import runpy
from nearfar.device.llama.extra_buffers import prepare_library
prepare_library()
runpy.run_module("llama_cpp.server", run_name="__main__", alter_sys=True)
"""


@contextmanager
def llama_server(log: Path) -> Iterator[str]:
    """Yields the server's base URL."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    options = {"model": MODEL, "host": "127.0.0.1", "port": port, "n_ctx": 512, "n_threads": 1}
    flags = {"logits_all": "true", "interrupt_requests": "false", "model_alias": "near"}
    arguments = [part for name, value in (options | flags).items() for part in (f"--{name}", str(value))]
    with log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-c", _SERVE, *arguments],
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**os.environ, "NO_PROXY": "127.0.0.1"},
        )
        try:
            base_url = f"http://127.0.0.1:{port}/v1"
            _wait_until_ready(base_url, process, log)
            yield base_url
        finally:
            process.terminate()
            try:
                process.wait(timeout=20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _wait_until_ready(base_url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    give_up = time.monotonic() + _START_SECONDS
    while time.monotonic() < give_up:
        if process.poll() is not None:
            break
        try:
            httpx.get(f"{base_url}/models", timeout=5).raise_for_status()
        except httpx.HTTPError:
            time.sleep(0.1)
        else:
            return
    raise RuntimeError(f"the llama.cpp server did not start: {log.read_text(encoding='utf-8', errors='replace')[-2000:]}")
