"""A LiteLLM proxy on loopback, as tests and benchmarks meet it: in a process of its own, telemetry off, no way to the network."""

import json
import os
import socket
import subprocess
import time
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from scripts.judges import python_of

_START_SECONDS: Final = 110.0
_STOP_SECONDS: Final = 20.0
_KEPT: Final = ("HOME", "LANG", "LC_ALL", "PATH", "SSL_CERT_FILE", "TMPDIR")
"""The user's other variables may be settings of LiteLLM's or of a provider's."""
_NOWHERE: Final = "http://127.0.0.1:9"
_SETTINGS: Final = {
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    "LITELLM_MODE": "PRODUCTION",
    "LITELLM_TELEMETRY": "False",
    "HTTP_PROXY": _NOWHERE,
    "HTTPS_PROXY": _NOWHERE,
    "NO_PROXY": "127.0.0.1,localhost",
    "OTEL_SDK_DISABLED": "true",
}


@contextmanager
def litellm_proxy(config: Mapping[str, object], folder: Path) -> Iterator[str]:
    """Run a proxy with `config`, keeping its files in `folder`, and yield its address without a path.

    Raises `JudgeMissingError` where LiteLLM is not installed, `RuntimeError` with the end of its log where it does not start.
    """
    python = python_of("litellm")
    # LiteLLM imports from the folder two levels above the one that it is started in.
    home = folder / "litellm" / "empty" / "run"
    home.mkdir(parents=True)
    (home / "config.yaml").write_text(json.dumps(config), encoding="utf-8")  # JSON is YAML
    log, port = home / "log", _free_port()
    command = [
        str(python.with_name("litellm")),
        "--config",
        "config.yaml",
        "--host",
        "127.0.0.1",
        "--port",
        str(port),
        "--num_workers",
        "1",
    ]
    with log.open("wb") as output:
        process = subprocess.Popen(
            [*command, "--telemetry", "False"],
            cwd=home,
            env=_environment(),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
        )
    address = f"http://127.0.0.1:{port}"
    try:
        _wait_until_alive(address, process, log)
        yield address
    finally:
        _stop(process)


def _environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name in _KEPT} | _SETTINGS


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _wait_until_alive(address: str, process: subprocess.Popen[bytes], log: Path) -> None:
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    deadline = time.monotonic() + _START_SECONDS
    while process.poll() is None and time.monotonic() < deadline:
        try:
            with opener.open(f"{address}/health/liveliness", timeout=5):
                return
        except OSError:
            time.sleep(0.1)
    raise RuntimeError(f"LiteLLM did not start:\n{log.read_text(encoding='utf-8', errors='replace')[-4000:]}")


def _stop(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(_STOP_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
