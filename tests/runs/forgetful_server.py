"""What stands before a Postgres server, and keeps the answer to a COMMIT to itself."""

import socket
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory

_SOCKET = ".s.PGSQL.5432"


class ForgetfulServer:
    """Hands everything on. Once `is_armed`, the next COMMIT is carried out, and the connection is gone before anybody is told so."""

    def __init__(self, target: Path) -> None:
        self.is_armed = False
        self.commits_lost = 0
        self._target = target

    def serve(self, listening: socket.socket) -> None:
        with suppress(OSError):  # closed, as the test is over
            while True:
                client, _ = listening.accept()
                server = socket.socket(socket.AF_UNIX)
                server.connect(str(self._target))
                for work in (self._ask, self._answer):
                    threading.Thread(target=work, args=(client, server), daemon=True).start()

    def _ask(self, client: socket.socket, server: socket.socket) -> None:
        with suppress(OSError):
            while data := client.recv(65536):
                if self.is_armed and b"COMMIT" in data:
                    self.is_armed = False
                    self.commits_lost += 1
                    client.shutdown(socket.SHUT_RDWR)
                server.sendall(data)
            server.shutdown(socket.SHUT_WR)

    def _answer(self, client: socket.socket, server: socket.socket) -> None:
        with closing(client), closing(server), suppress(OSError):
            while data := server.recv(65536):
                client.sendall(data)


@contextmanager
def forgetful(address: str) -> Iterator[tuple[ForgetfulServer, str]]:
    """Before the server of that address; and where to connect instead."""
    before, _, folder = address.rpartition("host=")
    with TemporaryDirectory(prefix="forgetful-") as name, socket.socket(socket.AF_UNIX) as listening:
        server = ForgetfulServer(Path(folder, _SOCKET))
        listening.bind(str(Path(name, _SOCKET)))
        listening.listen()
        threading.Thread(target=server.serve, args=(listening,), daemon=True).start()
        yield server, f"{before}host={name}"
        listening.shutdown(socket.SHUT_RDWR)
