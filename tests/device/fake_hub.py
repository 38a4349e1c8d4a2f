"""A Hugging Face hub on loopback: its listing, its redirects to where large files lie, its ranges, and its ways to fail."""

import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote, urlsplit

REPOSITORY = "maker/model-GGUF"


@dataclass
class FakeHub:
    """What the hub has, how it misbehaves, and what it was asked."""

    endpoint: str = ""
    files: dict[str, bytes] = field(default_factory=dict)
    token: str | None = None
    """Without which nothing is told."""
    claimed: dict[str, str] = field(default_factory=dict)
    """SHA-256 that the hub states for a file, where it is not the true one."""
    claimed_bytes: int | None = None
    """Size that the hub states for each file."""
    listed_size: list[object] = field(default_factory=list)
    """What stands in the listing where a file's size should, if anything is in here."""
    redirects_in_circles: bool = False
    redirects_to: str | None = None
    """Where all content lies, in place of this server under another name."""
    breaks_after: int | None = None
    """Bytes of content after which every connection breaks."""
    waits_after: int | None = None
    """Bytes of content after which it says so with `waiting` and waits for `go_on`."""
    waiting: threading.Event = field(default_factory=threading.Event)
    go_on: threading.Event = field(default_factory=threading.Event)
    ignores_ranges: bool = False
    says: tuple[str, bytes] | None = None
    """Part of a path, and the bytes that answer each request for it, with status line and headers."""
    is_endless: bool = False
    """Whether the last of these bytes is repeated until the caller leaves."""
    answer: int | None = None
    """HTTP status of every answer."""
    asked: list[tuple[str, str | None, str | None]] = field(default_factory=list)
    """Path, range and authorisation of each request."""

    @property
    def commit(self) -> str:
        return hashlib.sha1(b"".join(self.files.values())).hexdigest()

    def sha256(self, name: str) -> str:
        return self.claimed.get(name) or hashlib.sha256(self.files[name]).hexdigest()

    @property
    def ranges(self) -> list[str | None]:
        """Of the requests for content."""
        return [asked for path, asked, _ in self.asked if path.startswith("/content/")]


@contextmanager
def fake_hub(**files: bytes) -> Iterator[FakeHub]:
    """A hub whose only repository holds these files; `__` in a name stands for a dot."""
    hub = FakeHub(files={name.replace("__", "."): content for name, content in files.items()})

    class Handler(_Handler):
        state = hub

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    hub.endpoint = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


class _Handler(BaseHTTPRequestHandler):
    state: FakeHub

    def do_GET(self) -> None:
        path = unquote(urlsplit(self.path).path)
        self.state.asked.append((path, self.headers.get("Range"), self.headers.get("Authorization")))
        if self.state.says is not None and self.state.says[0] in path:
            self._say(self.state.says[1])
        elif self.state.answer is not None:
            self._send(self.state.answer)
        elif path.startswith("/content/"):
            self._content(path.removeprefix("/content/"))
        elif self.state.token is not None and self.headers.get("Authorization") != f"Bearer {self.state.token}":
            self._send(401, {"X-Error-Code": "RepoNotFound"})
        elif path.startswith(f"/api/models/{REPOSITORY}/revision/"):
            self._list(path.rpartition("/")[2])
        elif path.startswith(f"/{REPOSITORY}/resolve/{self.state.commit}/"):
            self._redirect(path.partition(f"/resolve/{self.state.commit}/")[2])
        else:
            self._send(404, {"X-Error-Code": "RepoNotFound"})

    def _say(self, answer: bytes) -> None:
        self.close_connection = True
        with suppress(ConnectionError):
            self.wfile.write(answer)
            while self.state.is_endless:
                self.wfile.write(answer[-1:] * (1 << 16))

    def _list(self, revision: str) -> None:
        if revision not in ("main", self.state.commit):
            self._send(404, {"X-Error-Code": "RevisionNotFound"})
            return
        siblings = [
            {"rfilename": name, "size": size, "blobId": "0" * 40, "lfs": {"sha256": self.state.sha256(name), "size": size}}
            for name, data in self.state.files.items()
            for size in self.state.listed_size or [self.state.claimed_bytes or len(data)]
        ]
        self._send(200, {"Content-Type": "application/json"}, json.dumps({"sha": self.state.commit, "siblings": siblings}).encode())

    def _redirect(self, name: str) -> None:
        linked = {"X-Linked-Etag": f'"{self.state.sha256(name)}"', "X-Linked-Size": str(len(self.state.files[name]))}
        elsewhere = self.state.redirects_to or self.state.endpoint.replace("127.0.0.1", "localhost")
        where = self.path if self.state.redirects_in_circles else f"{elsewhere}/content/{name}"
        self._send(302, {"Location": where, "X-Repo-Commit": self.state.commit, **linked})

    def _content(self, name: str) -> None:
        data, start = self.state.files[name], 0
        asked = self.headers.get("Range")
        if asked is not None and not self.state.ignores_ranges:
            first, _, last = asked.removeprefix("bytes=").partition("-")
            start, end = int(first), min(int(last or len(data)), len(data) - 1)
            if start >= len(data):
                self._send(416)
                return
            self.send_response(206)
            self.send_header("Content-Range", f"bytes {start}-{end}/{len(data)}")
            data = data[start : end + 1]
        else:
            self.send_response(200)
        self.send_header("ETag", f'"{self.state.sha256(name)}"')
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if self.state.waits_after is not None:
            self.wfile.write(data[: self.state.waits_after])
            self.state.waiting.set()
            self.state.go_on.wait(60)
            return
        self.wfile.write(data[: self.state.breaks_after])

    def _send(self, status: int, headers: dict[str, str] | None = None, body: bytes = b"") -> None:
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """The test's own output is enough."""
