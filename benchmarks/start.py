"""How long it takes until something happens: importing `Hybrid`, a task on the command line for the shipped model or for a server on this
machine, the help.

    python benchmarks/start.py --json [--quick]

Times are of processor time, of the process and its children, and so hardly depend on what else the machine does; the least of several
runs, since whatever disturbs a run only adds to it. Modules are compiled once, as pip compiles them, whatever PYTHONDONTWRITEBYTECODE says.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

_IMPORT = (sys.executable, "-c", "from nearfar import Hybrid")
_CLI = (sys.executable, "-m", "nearfar")
_TASK = (*_CLI, "run", "What is the city of the employer of Ines Falk?", "--near", "near", "--json")
_HELP = (*_CLI, "--help")


def cpu_seconds(command: Sequence[str], *, times: int) -> float:
    """Return the least processor time of several runs, children included. Raises `CalledProcessError` where one fails."""
    with tempfile.TemporaryDirectory() as compiled:
        return round(min(_once(command, compiled) for _ in range(times)), 3)


def _once(command: Sequence[str], compiled: str) -> float:
    given = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    environment = {**given, "PYTHONPYCACHEPREFIX": compiled}
    before = os.times()
    with tempfile.TemporaryDirectory() as folder:  # no nearfar.toml of the folder that this is started in
        subprocess.run(command, cwd=folder, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, check=True, timeout=60)
    after = os.times()
    return after.children_user + after.children_system - before.children_user - before.children_system


class _ModelServer(BaseHTTPRequestHandler):
    """A server that answers in OpenAI's form at once: what it takes counts for this process, and so for no figure."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        is_list = self.path == "/v1/models"
        self._send(200 if is_list else 404, json.dumps({"data": [{"id": "tiny"}]} if is_list else {}), "application/json")

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        choice = {"index": 0, "delta": {"content": "Lima"}, "finish_reason": "stop"}
        chunk = {"model": "tiny", "choices": [choice], "usage": {"prompt_tokens": 9, "completion_tokens": 1}}
        self._send(200, f"data: {json.dumps(chunk)}\n\ndata: [DONE]\n\n", "text/event-stream")

    def log_message(self, *_: object) -> None:
        """Log nothing."""

    def _send(self, status: int, text: str, kind: str) -> None:
        self.send_response(status)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(text)))
        self.end_headers()
        self.wfile.write(text.encode())


@contextmanager
def model_server() -> Iterator[str]:
    """Yield the address of a server of models in a thread of this process."""
    with ThreadingHTTPServer(("127.0.0.1", 0), _ModelServer) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/v1"
        server.shutdown()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print one line of JSON")
    parser.add_argument("--quick", action="store_true", help="fewer runs")
    options = parser.parse_args()
    times = 4 if options.quick else 10
    with model_server() as url:
        server_run = cpu_seconds((*_CLI, "run", "What is the capital of Peru?", "--near", url, "--json"), times=times)
    figures = {
        "import_cpu_s": cpu_seconds(_IMPORT, times=times),
        "run_cpu_s": cpu_seconds(_TASK, times=times),
        "server_run_cpu_s": server_run,
        "help_cpu_s": cpu_seconds(_HELP, times=times),
    }
    print(json.dumps(figures) if options.json else "\n".join(f"{name:>14}  {value}" for name, value in figures.items()))


if __name__ == "__main__":
    main()
