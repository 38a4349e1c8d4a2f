"""Bytes that a tracing service hears of tasks where the environment turns LangSmith's tracing on, as LangChain's users often have it."""

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Final

_WORKER: Final = Path(__file__).with_name("tracers_worker.py")
_SECONDS: Final = 60.0


class _Service:
    """Serves whatever a tracing client asks on loopback, and counts the bytes."""

    def __init__(self) -> None:
        self.heard = 0

    @contextmanager
    def serving(self) -> Iterator[str]:
        """Yield the address."""
        service = self

        class Handler(BaseHTTPRequestHandler):
            def _count(self) -> None:
                body = self.rfile.read(int(self.headers.get("content-length") or 0))
                service.heard += len(self.requestline) + len(body)
                self.send_response(200)
                self.send_header("content-length", "2")
                self.end_headers()
                self.wfile.write(b"{}")

            do_GET = do_POST = do_PATCH = _count

            def log_message(self, format: str, *args: object) -> None:
                pass

        with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
            thread = threading.Thread(target=server.serve_forever)
            thread.start()
            try:
                yield f"http://127.0.0.1:{server.server_port}"
            finally:
                server.shutdown()
                thread.join()


def figures(folder: Path, *, quick: bool) -> dict[str, Any]:
    """`traced_bytes` of `traced_tasks`; `traced_bytes_of_langgraph`: of a graph that is none of ours, in the same process."""
    service = _Service()
    with service.serving() as address:
        switches = {"LANGSMITH_TRACING": "true", "LANGCHAIN_TRACING_V2": "true", "LANGSMITH_API_KEY": "key", "LANGSMITH_ENDPOINT": address}
        command = [sys.executable, str(_WORKER)]
        with subprocess.Popen(command, stdin=-1, stdout=-1, text=True, env={**os.environ, **switches}) as worker:
            assert worker.stdout is not None, "it was asked for"
            assert worker.stdin is not None, "it was asked for"
            ending = threading.Timer(_SECONDS, worker.kill)
            ending.start()
            tasks = int(worker.stdout.readline().removeprefix("tasks "))
            of_tasks = service.heard
            worker.communicate("\n")
            ending.cancel()
    return {"traced_bytes": of_tasks, "traced_tasks": tasks, "traced_bytes_of_langgraph": service.heard - of_tasks}
