"""What a task says goes to no tracing service, whatever other tools have set in the environment."""

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

_TASK = """
import asyncio, sys
from pathlib import Path
from langchain_core.tracers.langchain import wait_for_all_tracers
from nearfar.orchestrator import Hybrid
from nearfar.orchestrator.runs.settings import RunsConfig
from nearfar.protocols import ScriptedAgent

async def main(way: str) -> None:
    runs = RunsConfig(folder=Path("runs")) if way == "durable" else None
    async with Hybrid(near=ScriptedAgent(["Nobody hears this."]), runs=runs) as hybrid:
        if way == "stream":
            async for _ in hybrid.stream("My secret is 4711."):
                pass
        else:
            await hybrid.run("My secret is 4711.")
    wait_for_all_tracers()

asyncio.run(main(sys.argv[1]))
"""


@contextmanager
def _service(heard: list[str]) -> Iterator[str]:
    """Serve whatever a tracing client asks, and note it."""

    class Handler(BaseHTTPRequestHandler):
        def _note(self) -> None:
            self.rfile.read(int(self.headers.get("content-length") or 0))
            heard.append(f"{self.command} {self.path}")
            self.send_response(200)
            self.send_header("content-length", "2")
            self.end_headers()
            self.wfile.write(b"{}")

        do_GET = do_POST = do_PATCH = _note

        def log_message(self, format: str, *args: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        serving = threading.Thread(target=server.serve_forever)
        serving.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        serving.join()


@pytest.mark.parametrize(
    ("switch", "way"), [("LANGSMITH_TRACING", "run"), ("LANGCHAIN_TRACING_V2", "stream"), ("LANGSMITH_TRACING", "durable")]
)
def test_nothing_of_a_task_goes_to_langsmith_where_the_environment_turns_its_tracing_on(switch: str, way: str, tmp_path: Path) -> None:
    heard: list[str] = []
    with _service(heard) as address:
        given = {switch: "true", "LANGSMITH_API_KEY": "key", "LANGSMITH_ENDPOINT": address}
        command = [sys.executable, "-c", _TASK, way]
        ended = subprocess.run(command, env={**os.environ, **given}, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert ended.returncode == 0, ended.stderr
    assert heard == []
