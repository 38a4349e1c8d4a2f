"""A server takes as many connections as the files that its process may have open allow, and a program of ours asks for more of them."""

import resource
import subprocess
import sys

import pytest

from nearfar.protocols import channel
from nearfar.protocols import limits as open_files
from nearfar.protocols.limits import CALLS_UPSTREAM, CONNECTIONS

ASKED = "import resource; from nearfar.protocols.limits import *; {}; print(open_file_limit(), most_connections(), most_calls_upstream())"


@pytest.fixture
def files(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The soft limit, which the test may set."""
    limit = [1024]
    monkeypatch.setattr(resource, "getrlimit", lambda _: (limit[0], resource.RLIM_INFINITY))
    return limit


@pytest.mark.parametrize(
    ("may_open", "connections", "calls"),
    [
        (256, 128, 64),
        (1024, 512, 256),
        (4096, 2048, 1024),
        (1_048_576, CONNECTIONS, CALLS_UPSTREAM),
        (resource.RLIM_INFINITY, CONNECTIONS, CALLS_UPSTREAM),
        (1, 1, 1),
    ],
)
def test_limits_follow_what_the_process_may_open(files: list[int], may_open: int, connections: int, calls: int) -> None:
    files[0] = may_open
    assert (open_files.most_connections(), open_files.most_calls_upstream()) == (connections, calls)
    assert dict(channel.server_options())["grpc.max_allowed_incoming_connections"] == connections


def in_a_process(*, soft: int, hard: int, then: str) -> list[int]:
    """Files, connections and calls of a process that begins with these limits."""
    limited = f"resource.setrlimit(resource.RLIMIT_NOFILE, ({soft}, {hard})); {then}"
    result = subprocess.run([sys.executable, "-c", ASKED.format(limited)], capture_output=True, text=True, timeout=60, check=True)
    return [int(figure) for figure in result.stdout.split()]


def test_a_server_program_gets_what_the_hard_limit_grants() -> None:
    assert in_a_process(soft=256, hard=2000, then="ask_for_open_files()") == [2000, 1000, 500]


def test_a_limit_that_is_high_enough_stays() -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < 9000:
        pytest.skip(f"this machine lets a process open {hard} files")
    assert in_a_process(soft=9000, hard=9000, then="ask_for_open_files()") == [9000, CONNECTIONS, CALLS_UPSTREAM]


def test_a_library_leaves_the_limit_alone() -> None:
    assert in_a_process(soft=256, hard=2000, then="import nearfar.protocols.server")[0] == 256


def test_a_system_that_refuses_more_files_is_borne(files: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise ValueError("not allowed to raise maximum limit")

    monkeypatch.setattr(resource, "setrlimit", refuse)
    open_files.ask_for_open_files()
    assert open_files.open_file_limit() == files[0]
