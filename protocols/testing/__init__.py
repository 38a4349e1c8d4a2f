"""Test tools for implementations of `Agent`: the suite's subject and its transports, and a TCP proxy that breaks connections on command."""

import asyncio
import socket
import struct
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from contextvars import Context
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Literal, TypeAlias, TypeVarTuple

import anyio

from ..agent import Agent, Side
from ..attach import Worker
from ..client import RemoteAgent
from ..errors import NearfarError
from ..hub import Hub, WorkerTerms, serve_hub
from ..server import serve
from ..steps import JsonSchema, Message, Sensitivity, StepRequest, ToolSpec

Ts = TypeVarTuple("Ts")
Transport: TypeAlias = Callable[[Agent], AbstractAsyncContextManager[Agent]]
"""Yields an agent that behaves like the given one, at the other end of some transport."""


class EventLoop(asyncio.SelectorEventLoop):
    """The loop of one test, as `loop_factory` of pytest's anyio plugin.

    gRPC has one queue of answers for all loops. A late answer, as of a call that was cancelled at the end of its test, would fail the
    test that runs next.
    """

    def call_soon_threadsafe(self, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None) -> asyncio.Handle:
        if self.is_closed() and callback.__name__ == "_handle_callback_wrapper":
            return asyncio.Handle(callback, args, self, context)
        return super().call_soon_threadsafe(callback, *args, context=context)


Way: TypeAlias = Literal["to_target", "from_target"]

_RESET_ON_CLOSE = struct.pack("ii", 1, 0)
_CHUNK = 64 * 1024


class ChaosProxy:
    """Forwards connections to a target until told otherwise. Created by `chaos_proxy`."""

    def __init__(self, host: str, port: int) -> None:
        self._target = (host, port)
        self._server: asyncio.Server | None = None
        self._links: set[_Link] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._flowing = asyncio.Event()
        self._flowing.set()
        self._reset_after: int | None = None
        self.address = ""
        """Address to connect to instead of the target."""
        self.latency = 0.0
        """Seconds by which every chunk is delayed, in both directions."""
        self.connections = 0
        """Connections accepted so far."""

    async def start(self, port: int = 0) -> None:
        """Listen; `port` 0 takes a free one."""
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", port)
        host, bound = self._server.sockets[0].getsockname()[:2]
        self.address = f"{host}:{bound}"

    async def refuse(self) -> None:
        """Stop listening: new connections are refused. Open ones stay; `resume` listens again at the same address."""
        if self._server is not None:
            self._server.close()
            self._server = None

    async def resume(self) -> None:
        """Undo `refuse` and `black_hole`."""
        if self._server is None:
            await self.start(int(self.address.rpartition(":")[2]))
        self._flowing.set()

    def retarget(self, target: str) -> None:
        """Forward new connections to another `host:port`."""
        self._target = _split(target)

    def black_hole(self) -> None:
        """Keep all connections open and accept new ones, but forward nothing more."""
        self._flowing.clear()

    def reset(self) -> None:
        """Break all open connections with a TCP reset."""
        for link in tuple(self._links):
            link.break_off(reset=True)

    def close(self) -> None:
        """End all open connections in order."""
        for link in tuple(self._links):
            link.break_off(reset=False)

    def reset_after(self, count: int) -> None:
        """Reset the next connection that has carried `count` bytes from the target, once."""
        self._reset_after = count

    async def stop(self) -> None:
        """Close everything and wait for it."""
        await self.refuse()
        self.reset()
        for task in tuple(self._tasks):
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            upstream = await asyncio.open_connection(*self._target)
        except OSError:
            writer.close()
            return
        link = _Link(writer, upstream[1])
        self._links.add(link)
        self._spawn(self._pump(reader, upstream[1], link, "to_target"))
        self._spawn(self._pump(upstream[0], writer, link, "from_target"))

    def _spawn(self, pump: Coroutine[None, None, None]) -> None:
        task = asyncio.create_task(pump)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, link: "_Link", way: Way) -> None:
        try:
            while chunk := await reader.read(_CHUNK):
                if self.latency:
                    await asyncio.sleep(self.latency)
                await self._flowing.wait()
                chunk = self._up_to_reset(chunk) if way == "from_target" else chunk
                writer.write(chunk)
                await writer.drain()
                if self._reset_after == 0:
                    self._reset_after = None
                    link.break_off(reset=True)
        except OSError:  # either side broke off: so does the other
            link.break_off(reset=True)
        finally:
            link.break_off(reset=False)
            self._links.discard(link)

    def _up_to_reset(self, chunk: bytes) -> bytes:
        if self._reset_after is None:
            return chunk
        chunk = chunk[: self._reset_after]
        self._reset_after -= len(chunk)
        return chunk


class _Link:
    """The two ends of one forwarded connection."""

    def __init__(self, *writers: asyncio.StreamWriter) -> None:
        self._writers = writers

    def break_off(self, *, reset: bool) -> None:
        for writer in self._writers:
            if reset and not writer.is_closing():
                writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
                writer.transport.abort()
            else:
                writer.close()


@asynccontextmanager
async def chaos_proxy(target: str) -> AsyncIterator[ChaosProxy]:
    """Run a proxy in front of `target` (`host:port`) until the context ends."""
    proxy = ChaosProxy(*_split(target))
    await proxy.start()
    try:
        yield proxy
    finally:
        await proxy.stop()


def _split(target: str) -> tuple[str, int]:
    host, _, port = target.rpartition(":")
    return host, int(port)


@dataclass(frozen=True, kw_only=True)
class ToolUse:
    """A prompt that makes the agent call one of `tools`, and the result that the tool then returns."""

    prompt: str
    tools: tuple[ToolSpec, ...]
    result: str


@dataclass(frozen=True, kw_only=True)
class SchemaUse:
    """A prompt that the agent answers with JSON valid against `schema`."""

    prompt: str
    schema: JsonSchema


@dataclass(frozen=True, kw_only=True)
class UnicodeUse:
    """A prompt whose answer holds `expected`: text whose characters the agent's tokens split, such as emoji."""

    prompt: str
    expected: str


@dataclass(frozen=True, kw_only=True)
class Subject:
    """An agent under test, and the prompts that make it do each thing.

    None in `tool_use` or `schema_use` says that the capability is not claimed: the suite then checks that the card says so
    too and that asking for it raises `Unsupported`.
    """

    create: Callable[[], Awaitable[Agent]]
    """Makes a fresh agent; the suite closes it."""
    prompt: str
    """Answered with at least one token of text."""
    long_prompt: str
    """Answered with text in several events, slowly enough that the step is still running when its first event is read."""
    tool_use: ToolUse | None = None
    schema_use: SchemaUse | None = None
    unicode_use: UnicodeUse | None = None
    """None: the agent cannot write such text; the check is skipped."""
    overflow_prompt: str | None = None
    """Longer than the context window; None: counted up from the card's `limits.context_tokens`."""
    least_output_tokens: int = 2
    """The lowest limit of output that the agent keeps; more than 2 where its model's API takes no lower one."""
    live_steps: Callable[[Agent], int] | None = None
    """Steps that the agent (as `create` made it) is computing now."""
    tokens_decoded: Callable[[Agent], int] | None = None
    """Tokens that the agent has generated so far, over all steps."""
    tokens_after_cancel: int = 2
    """Tokens that may still be generated once a cancellation has reached the agent."""
    time_limit: float = 60.0
    """Seconds that one check may take before it counts as hanging."""


@dataclass(frozen=True, kw_only=True)
class Case:
    """One run of one check."""

    subject: Subject
    agent: Agent
    """The agent at the user's end of the transport."""
    local: Agent
    """The agent as `Subject.create` returned it."""

    def request(self, prompt: str, **fields: object) -> StepRequest:
        """Return a request with one user message, or with `messages` if they are given, that this agent may see."""
        fields.setdefault("messages", (Message.user(prompt),))
        fields.setdefault("sensitivity", Sensitivity.PUBLIC if self.agent.card.side is Side.FAR else Sensitivity.PRIVATE)
        return StepRequest.model_validate(fields)

    @property
    def live_steps(self) -> int:
        return 0 if self.subject.live_steps is None else self.subject.live_steps(self.local)

    @property
    def tokens_decoded(self) -> int:
        return 0 if self.subject.tokens_decoded is None else self.subject.tokens_decoded(self.local)

    async def until_idle(self) -> None:
        """Wait until the agent computes nothing; the check's time limit bounds it."""
        await eventually(lambda: self.live_steps == 0)


def expect(condition: object, otherwise: str) -> None:
    """Assert a condition, also under `python -O`."""
    if not condition:
        raise AssertionError(otherwise)


@contextmanager
def expect_error(*expected: type[NearfarError]) -> Iterator[None]:
    """Assert that the body raises one of `expected`."""
    names = " or ".join(error.__name__ for error in expected)
    try:
        yield
    except expected:
        return
    except NearfarError as error:
        raise AssertionError(f"{names} was expected, and {type(error).__name__} raised: {error}") from error
    raise AssertionError(f"{names} was expected, and nothing raised")


async def eventually(condition: Callable[[], bool]) -> None:
    """Wait until `condition` holds. It has no time limit of its own: give it one with `anyio.fail_after`."""
    while not condition():  # noqa: ASYNC110 - the condition may depend on another process, which can set no event here
        await anyio.sleep(0.005)


@asynccontextmanager
async def in_process(agent: Agent) -> AsyncIterator[Agent]:
    """Yield the agent itself."""
    yield agent


@asynccontextmanager
async def grpc_tcp(agent: Agent) -> AsyncIterator[Agent]:
    """Yield the agent behind a server on a free loopback port."""
    async with _served(agent, "localhost:0") as remote:
        yield remote


@asynccontextmanager
async def grpc_unix(agent: Agent) -> AsyncIterator[Agent]:
    """Yield the agent behind a server on a unix socket."""
    with TemporaryDirectory(prefix="nearfar-") as folder:
        async with _served(agent, f"unix:{Path(folder) / 'agent.sock'}") as remote:
            yield remote


@asynccontextmanager
async def attached(agent: Agent) -> AsyncIterator[Agent]:
    """Yield the agent on a worker that attached to a hub, which treats the worker as the user's own device."""
    name, token = agent.card.name, "the worker's own token"
    hub = Hub({name: token}, policies={name: WorkerTerms(side=Side.NEAR)})
    async with serve_hub(hub) as address:
        worker = Worker(agent, address, token=token)
        running = asyncio.create_task(worker.run())
        lent = await hub.wait_for(name)
        try:
            yield lent
        finally:
            await lent.aclose()
            await worker.drain(0)
            await running


@asynccontextmanager
async def _served(agent: Agent, address: str) -> AsyncIterator[Agent]:
    async with serve(agent, address) as server:
        remote = await RemoteAgent.connect(server.address)
        try:
            yield remote
        finally:
            await remote.aclose()


TRANSPORTS: tuple[Transport, ...] = (in_process, grpc_tcp, grpc_unix, attached)
"""Every transport, for a parametrised test."""
