"""The subject of the conformance suite, and the transports it is tested over: in-process, TCP, unix socket and attached worker."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TypeAlias

import anyio

from ..agent import Agent, Side
from ..attach import Worker
from ..client import RemoteAgent
from ..errors import NearfarError
from ..hub import Hub, WorkerTerms, serve_hub
from ..server import serve
from ..steps import JsonSchema, Message, Sensitivity, StepRequest, ToolSpec

Transport: TypeAlias = Callable[[Agent], AbstractAsyncContextManager[Agent]]
"""Yields an agent that behaves like the given one, at the other end of some transport."""


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
