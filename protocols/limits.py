"""Limits on the peers of a server and on the workers of a hub, with the reason for each value.

A request beyond a limit is refused with a typed error, and costs its sender more than the server. The connections of a process are also
bounded by the files that it may have open. docs/security.md lists all limits; those on memories are in
`orchestrator/memory/validation.py` and `orchestrator/memory/sync/`.
"""

import asyncio
import math
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

_MEBIBYTE: Final = 1024 * 1024

# What gRPC itself holds back, before a call is looked at.

MAX_MESSAGE_BYTES: Final = 32 * _MEBIBYTE
"""Bytes of a request or an event: a context of a million tokens takes an eighth of it."""
METADATA_BYTES: Final = 8 * 1024
"""Bytes of a call's metadata: a token takes a hundred, and proxies add some."""
CONNECTIONS: Final = 4096
"""Connections to one server, and at most half of the files that its process may have open (`RLIMIT_NOFILE`): 20 kB of memory each."""
CALLS_OF_A_CONNECTION: Final = 1024
"""Concurrent calls on one connection; further ones wait at the client."""
CALLS: Final = 4096
"""Calls open at one server."""
HANDSHAKE_SECONDS: Final = 10.0
"""Seconds for TLS and the first frames: a few round trips, even over a bad network."""
IDLE_CONNECTION_SECONDS: Final = 7200.0
"""Seconds without any call before the server closes a connection. Idle clients close theirs after half an hour."""

# What a call passes before its handler sees it.

CALLS_OF_A_CALLER: Final = 3584
"""Calls that one caller may have open; the rest of `CALLS` is left for other callers."""
CALLS_OF_A_STRANGER: Final = 16
"""Calls that one address may have open to the services that need no token, health and reflection."""
STRANGER_SECONDS: Final = 30.0
"""Seconds for a call that needs no token, except a watch of the health."""
FIRST_MESSAGE_SECONDS: Final = 30.0
"""Seconds from a call to its whole request: 32 MiB at 9 Mbit/s. A caller that sends nothing does not hold a call for long."""
READS_OF_A_CALLER: Final = 16
"""Requests of a caller that are received at once; further ones wait. So many half-sent requests of the largest size take half a
gigabyte."""
REQUEST_BYTES_OF_A_CALLER: Final = 256 * _MEBIBYTE
"""Bytes of the requests of all open calls of a caller."""
BODY_SECONDS: Final = 60.0
"""Seconds for an HTTP client to go on with a body that it has begun, before its connection ends."""
UNREAD_SECONDS: Final = 60.0
"""Seconds for a reader to take one event before the call ends: the reader is gone, or holds the server's memory on purpose."""

# Wrong tokens.

FREE_FAILURES: Final = 5
"""Wrong tokens from one address without a wait, for a person who pastes the wrong line."""
LONGEST_WAIT_SECONDS: Final = 60.0
"""Seconds between two attempts at most. After the free failures the wait is 1, 2, 4 ... seconds, so 1,440 guesses a day are possible."""
FAILURES_KEPT_SECONDS: Final = 900.0
"""Seconds after its last failure until an address starts from zero."""
ADDRESSES: Final = 4096
"""Addresses whose failures are kept, the latest ones."""

# What is in a request.

MESSAGES: Final = 10_000
"""Messages of a conversation: no model's context holds so many."""
CALLS_OF_A_MESSAGE: Final = 256
"""Tool calls of one message: models make fewer than ten at once."""
TOOLS: Final = 512
"""Tools in a request: providers accept 128 at most."""
SCHEMA_LENGTH: Final = 256 * 1024
"""Characters of one JSON Schema, which takes time to compile."""
JSON_DEPTH: Final = 64
"""Levels of any JSON that comes from outside: pydantic, jsonschema and grammars walk it by recursion."""
ATTACHMENT_BYTES: Final = 16 * _MEBIBYTE
"""Bytes of one image or document: providers accept 5 to 50 MB."""
ATTACHED_BYTES: Final = 24 * _MEBIBYTE
"""Bytes of all of them in a request."""
ATTACHMENTS: Final = 100
"""Images and documents of a request, as providers accept."""
NAME_LENGTH: Final = 256
"""Characters of the name of an agent or an adapter, of a call's id and of a stop sequence."""

# What comes back from a server or a provider.

STEP_BYTES: Final = 256 * _MEBIBYTE
"""Bytes of all events of a step, or of a provider's whole answer: a token with its probabilities takes a thousand bytes there."""
LINE_CHARACTERS: Final = 16 * _MEBIBYTE
"""Characters of one line of a provider's stream, which has to be in memory before it can be read."""
CALLS_UPSTREAM: Final = 1024
"""Concurrent calls of a provider if the configuration sets no `concurrency`, and at most a quarter of the files of the process."""

# What a server keeps for those who come back.

STEPS: Final = 4096
"""Steps that one server runs or keeps: a fleet of a thousand devices asks as many at once."""
STEPS_OF_A_CALLER: Final = 3072
"""Steps that run for one caller; the rest of `STEPS` is left for other callers."""
KEPT_BYTES: Final = 64 * _MEBIBYTE
"""Bytes of the events of all steps that run or are kept."""

# What a hub takes from a worker, and a worker from its hub.

STEPS_OF_A_WORKER: Final = 64
"""Steps that a worker has, cancelled ones included until it ends them: a phone computes one or two at a time."""
UNREAD_BYTES: Final = 16 * _MEBIBYTE
"""Bytes of the events of one step that its reader has not taken yet."""
UNSENT_BYTES: Final = 2 * MAX_MESSAGE_BYTES
"""Bytes that wait to be sent to a worker: one step of the largest size, and another."""
CHECKED_CHARACTERS: Final = 16 * _MEBIBYTE
"""Characters of a text that is kept to be checked against a schema at its end."""
EVENT_OVERHEAD: Final = 256
"""Bytes that an event takes in memory besides its content, roughly; without it, many empty events would be free."""
LATE_OUTPUTS: Final = 1_000
"""Outputs of a cancelled step before its end: some are under way when the cancellation arrives."""
NEWS: Final = 100
"""Messages of a worker about itself between two heartbeats of the hub."""
REGISTRATION_SECONDS: Final = 10.0
"""Seconds from the call to the worker's registration, which needs no computing."""
REGISTRATION_BYTES: Final = 64 * 1024
"""Bytes of a registration: a card takes a kilobyte or two."""
FRAME_BYTES: Final = _MEBIBYTE
"""Bytes of one WebSocket frame of a worker: a token of text takes a hundred, the arguments of a tool call a few thousand."""
AGENTS_OF_A_WORKER: Final = 16
"""Agents that a worker lends: a phone has memory for one or two."""
WORKER_NAME_LENGTH: Final = 128
"""Characters of the names of a worker and its agents, which are shown in tables."""
FAILURE_LENGTH: Final = 4000
"""Characters of the message and of the hint of a failure; the rest is cut off."""


_WANTED: Final = 2 * CONNECTIONS
"""Files to ask for. macOS grants 10,240 and refuses more, even if its limit says "unlimited"."""
_WHERE_UNKNOWN: Final = 1024
"""Limit assumed on Windows, which has none."""
_SHARE_OF_CALLERS: Final = 2
_SHARE_OF_PROVIDER: Final = 4


def open_file_limit() -> int:
    """Return how many files this process may have open at once (`RLIMIT_NOFILE`)."""
    try:
        import resource
    except ModuleNotFoundError:
        return _WHERE_UNKNOWN
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return _WANTED if soft == resource.RLIM_INFINITY else soft


def ask_for_open_files() -> None:
    """Raise the limit of this process and its children as far as a server needs and the system grants.

    Use it in programs that are servers and nothing else: `select.select` fails with file numbers above 1,024, so a library must not do
    this.
    """
    try:
        import resource
    except ModuleNotFoundError:
        return
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _WANTED if hard == resource.RLIM_INFINITY else min(_WANTED, hard)
    if open_file_limit() < wanted:
        with suppress(OSError, ValueError):  # where the system refuses, the limit stays as it is
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def most_connections() -> int:
    """Return how many connections a server of this process takes: half of its files, `CONNECTIONS` at most."""
    return max(min(CONNECTIONS, open_file_limit() // _SHARE_OF_CALLERS), 1)


def most_calls_upstream() -> int:
    """Return how many calls of a provider this process has open at once: a quarter of its files, `CALLS_UPSTREAM` at most."""
    return max(min(CALLS_UPSTREAM, open_file_limit() // _SHARE_OF_PROVIDER), 1)


_TICKS_PER_BEAT = 3


@dataclass(frozen=True, kw_only=True)
class Heartbeat:
    """The interval of heartbeats and the limit of silence, in seconds."""

    interval: float = 1.5
    """Seconds between two heartbeats."""
    silence_limit: float = 4.5
    """Silence after which the other side counts as dead; it is noticed at most a third of an interval later."""


class Pulse:
    """Sends this side's heartbeats and watches for the other side's.

    A stopped process or a black hole in the network breaks no connection, so both sides have to send heartbeats. Silence is counted in
    ticks and not by the clock: while this process itself stood still, as in a closed laptop, it read nothing.
    """

    def __init__(self, heartbeat: Heartbeat) -> None:
        self._tick = heartbeat.interval / _TICKS_PER_BEAT
        self._limit = math.ceil(heartbeat.silence_limit / self._tick)
        self._silent_ticks = 0

    def heard(self) -> None:
        """Record that a message came from the other side."""
        self._silent_ticks = 0

    @property
    def is_silent(self) -> bool:
        """Return whether the other side has been silent for the limit."""
        return self._silent_ticks >= self._limit

    async def run(self, beat: Callable[[], Awaitable[None]]) -> None:
        """Call `beat` once per interval; return when the other side has been silent for too long."""
        ticks = 0
        while not self.is_silent:
            if not ticks % _TICKS_PER_BEAT:
                await beat()
            await asyncio.sleep(self._tick)
            ticks += 1
            self._silent_ticks += 1
