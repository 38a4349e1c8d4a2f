"""How much a peer may ask of a server, or a worker of its hub: every limit of the wire, and why it is where it is.

What lies beyond is refused with a typed error, and costs its sender more than it costs the server. docs/security.md lists all of them; the
limits on memories are in `orchestrator/memory/validation.py` and `orchestrator/memory/sync/limits.py`.
"""

from typing import Final

_MEBIBYTE: Final = 1024 * 1024

# What gRPC itself holds back, before a call is looked at.

MAX_MESSAGE_BYTES: Final = 32 * _MEBIBYTE
"""Of a request or an event: a context of a million tokens takes an eighth of it."""
METADATA_BYTES: Final = 8 * 1024
"""Of all metadata of a call: a token takes a hundred, and proxies add some."""
CONNECTIONS: Final = 4096
"""To one server, and half of the files that its process may have open (`RLIMIT_NOFILE`) at most: 20 kB of memory each."""
CALLS_OF_A_CONNECTION: Final = 1024
"""At once; further ones wait at the client."""
CALLS: Final = 4096
"""Open at one server."""
HANDSHAKE_SECONDS: Final = 10.0
"""For TLS and the first frames: a few round trips, even over a bad network."""
IDLE_CONNECTION_SECONDS: Final = 7200.0
"""Without any call. Idle clients leave after half an hour by themselves, and in silence; what never calls nor leaves goes then."""

# What a call passes before its handler sees it.

CALLS_OF_A_CALLER: Final = 3584
"""Open at once: with its calls alone, one caller cannot use up all that a server takes."""
CALLS_OF_A_STRANGER: Final = 16
"""Open at once from one address to what needs no token, health and reflection."""
STRANGER_SECONDS: Final = 30.0
"""That such a call takes, but for watching the health."""
FIRST_MESSAGE_SECONDS: Final = 30.0
"""From a call to its whole request: 32 MiB at 9 Mbit/s. Who opens calls and sends nothing does not hold them for long."""
READS_OF_A_CALLER: Final = 16
"""Requests that are received at once, further ones wait: so many half-sent ones of the largest size take half a gigabyte."""
REQUEST_BYTES_OF_A_CALLER: Final = 256 * _MEBIBYTE
"""Of the requests of all its open calls."""
UNREAD_SECONDS: Final = 60.0
"""That a reader may take for one event, before the call ends: it is gone, or holds the server's memory on purpose."""

# Wrong tokens.

FREE_FAILURES: Final = 5
"""From one address, without any wait: a person who pastes the wrong line."""
LONGEST_WAIT_SECONDS: Final = 60.0
"""After that the address waits 1, 2, 4 ... and at most so many seconds between two attempts: 1,440 guesses a day."""
FAILURES_KEPT_SECONDS: Final = 900.0
"""After its last failure, an address begins anew."""
ADDRESSES: Final = 4096
"""That failures are kept of, the latest ones."""

# What is in a request.

MESSAGES: Final = 10_000
"""Of a conversation: no model's context holds so many."""
CALLS_OF_A_MESSAGE: Final = 256
"""Tools that one message calls: models call fewer than ten at once."""
TOOLS: Final = 512
"""That a request offers: providers take 128 at most."""
SCHEMA_LENGTH: Final = 256 * 1024
"""Characters of one JSON Schema: it is compiled by whoever enforces it, which takes time."""
JSON_DEPTH: Final = 64
"""Levels of any JSON that comes from outside: pydantic, jsonschema and grammars walk it by recursion."""
NAME_LENGTH: Final = 256
"""Characters of the name of an agent or an adapter, of a call's id and of a stop sequence."""

# What comes back from a server or a provider.

STEP_BYTES: Final = 256 * _MEBIBYTE
"""Of all events of a step, or of a provider's whole answer: a token with its probabilities takes a thousand bytes there."""
LINE_CHARACTERS: Final = 16 * _MEBIBYTE
"""Of one line of a provider's stream, which is in memory before anything can be made of it."""
CALLS_UPSTREAM: Final = 1024
"""Of a provider, open at once, and a quarter of the files of the process at most, where the configuration sets no `concurrency`."""

# What a server keeps for those who come back.

STEPS: Final = 4096
"""That one server runs or keeps: a fleet of a thousand devices asks as many at once."""
STEPS_OF_A_CALLER: Final = 3072
"""That run for one caller, so that there is always room for others."""
KEPT_BYTES: Final = 64 * _MEBIBYTE
"""Of the events of all steps that run or are kept."""

# What a hub takes from a worker, and a worker from its hub.

STEPS_OF_A_WORKER: Final = 64
"""Those included that it was told to stop and has not ended yet: a phone computes one or two at a time."""
UNREAD_BYTES: Final = 16 * _MEBIBYTE
"""Of the events of one step of a worker that its reader has not taken yet."""
UNSENT_BYTES: Final = 2 * MAX_MESSAGE_BYTES
"""That wait to be sent to a worker: one step of the largest size, and another."""
CHECKED_CHARACTERS: Final = 16 * _MEBIBYTE
"""Of a text that is kept to be checked against a schema at its end."""
EVENT_OVERHEAD: Final = 256
"""Bytes that an event takes in memory beside its content, roughly: many empty ones are a flood, too."""
LATE_OUTPUTS: Final = 1_000
"""Of a step that the worker was told to stop: what was under way may still come, and then its end."""
NEWS: Final = 100
"""Messages of a worker about itself between two heartbeats of the hub."""
REGISTRATION_SECONDS: Final = 10.0
"""From the call to the worker's registration, which needs no computing."""
REGISTRATION_BYTES: Final = 64 * 1024
"""Of a registration: a card takes a kilobyte or two."""
AGENTS_OF_A_WORKER: Final = 16
"""That it lends: a phone has memory for one or two."""
WORKER_NAME_LENGTH: Final = 128
"""Characters of what a worker calls itself and its agents: they are shown in tables."""
FAILURE_LENGTH: Final = 4000
"""Characters of the message and of the hint of a failure; the rest is cut off."""
