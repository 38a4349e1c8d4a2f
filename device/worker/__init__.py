"""`LocalAgent`: an agent whose model runs in a worker process on this machine, whatever engine decodes it."""

import asyncio
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Collection
from contextlib import aclosing, suppress
from importlib.util import find_spec
from pathlib import Path
from secrets import token_hex
from typing import ClassVar, Final, Self, cast

import anyio
from pydantic import JsonValue

from ...protocols import (
    AgentCard,
    ConfigError,
    DeadlineExceeded,
    Finished,
    FinishReason,
    InvalidOutput,
    Performance,
    StepEvent,
    StepRequest,
    TextDelta,
    TokenLogprob,
    ToolCall,
    ToolCalled,
    Unavailable,
    Usage,
    WorkerCrashed,
)
from ...protocols.agent import LoopBound
from ...protocols.validation import check_arguments, check_request, parse_output
from .process import WorkerProcess
from .protocol import StepEventKind, WorkerOptions, WorkerStatistics, error_from_frame

_MOST_CRASHES: Final = 3
_COOL_DOWN_SECONDS: Final = 30.0


class LocalAgent(ABC):
    """The base of the agents that run models on this machine.

    Concurrent steps are decoded together and share the cached prefixes of their prompts. If the worker dies, the steps under way raise
    `WorkerCrashed` and the next one starts a new worker.

    What a model thinks between `<think>` and `</think>` before it answers is generated and counted in `Usage`, but is neither emitted nor
    part of `confidence`. A step with an `output_schema` or a required tool call does not reason: its grammar holds from the first token.
    """

    worker_module: ClassVar[str]
    """The module that the worker process runs."""

    def __init__(
        self,
        card: AgentCard,
        options: WorkerOptions,
        worker: WorkerProcess,
        *,
        adapter: str | None = None,
        call_adapter: str | None = None,
    ) -> None:
        """Take the parts that `load` of a subclass has made. `adapter` and `call_adapter` apply to requests that name none."""
        self.card = card
        self._adapters = {"adapter": adapter, "call_adapter": call_adapter} if adapter or call_adapter else None
        self._options = options
        self._worker = worker
        self._starting = anyio.Lock()
        self._home = LoopBound()
        self._home.require(card.name)
        self._closed = False
        self._crashes = 0
        self._crashed: WorkerProcess | None = None
        self._last_crash = 0.0

    @staticmethod
    @abstractmethod
    def check_model(path: Path) -> None:
        """Look at the model's file before a worker loads it. Raises `ModelNotFound` or `ModelError`."""

    @property
    def live_steps(self) -> int:
        """Steps that the worker has not yet reported as over."""
        return len(self._worker.live)

    @property
    def tokens_decoded(self) -> int:
        """Tokens that this worker had generated, over all steps, when it last reported."""
        return self._worker.decoded_tokens

    async def step(self, request: StepRequest) -> AsyncGenerator[StepEvent, None]:
        """Take one turn of the conversation in `request`. Closing the stream early stops the decoding."""
        if self._adapters and request.adapter is request.call_adapter is None:
            request = request.model_copy(update=self._adapters)
        check_request(self.card, request)
        self._home.require(f"agent {self.card.name!r}")
        begin = time.monotonic()
        worker = await self._living_worker(request.timeout)
        timeout = None if request.timeout is None else request.timeout - (time.monotonic() - begin)
        said: list[str] = []
        try:
            async with aclosing(worker.step(request, timeout)) as events:
                async for kind, payload in events:
                    event = self._event(kind, payload, request)
                    if isinstance(event, TextDelta):
                        said.append(event.text)
                    elif isinstance(event, Finished):
                        self._crashes = 0
                        _check_answer("".join(said), event.reason, request)
                    yield event
        except WorkerCrashed:
            self._note_crash(worker)
            raise

    async def count_tokens(self, request: StepRequest) -> int:
        """Return the tokens of the prompt of the step that a `request` asks for, as its usage would count them. Raises what the step raises
        before its first token."""
        check_request(self.card, request)
        self._home.require(f"agent {self.card.name!r}")
        return await (await self._living_worker(request.timeout)).count_tokens(request)

    async def statistics(self) -> WorkerStatistics:
        """Return the worker's counts. Raises `Unavailable` if the agent is closed or its worker does not answer."""
        return await (await self._living_worker(None)).statistics()

    async def aclose(self) -> None:
        """End the worker process; steps under way raise `Unavailable`."""
        self._home.require(f"agent {self.card.name!r}")
        self._closed = True
        async with self._starting:  # Else a worker that is just being started would stay.
            await self._worker.close()

    def abandon(self) -> None:
        """End the worker process where the event loop that it belongs to is closed."""
        self._closed = True
        self._worker.kill()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def _living_worker(self, seconds: float | None) -> WorkerProcess:
        """Return the worker, or start a new one if it has died."""
        if self._worker.alive and not self._closed:
            return self._worker
        try:
            async with asyncio.timeout(seconds), self._starting:
                return await self._restart()
        except TimeoutError as error:
            raise DeadlineExceeded("the step's timeout passed while its worker was started", hint="give a longer timeout") from error

    async def _restart(self) -> WorkerProcess:
        if self._closed:
            raise Unavailable(f"agent {self.card.name!r} is closed", hint="load it again")
        if not self._worker.alive:
            self._refuse_hopeless()
            await self._worker.close()
            await anyio.to_thread.run_sync(self.check_model, Path(self._options.path))  # The file may have changed since.
            self._worker, _ = await WorkerProcess.start(self.worker_module, self._options)
        return self._worker

    def _refuse_hopeless(self) -> None:
        wait = self._last_crash + _COOL_DOWN_SECONDS - time.monotonic()
        if self._crashes >= _MOST_CRASHES and wait > 0:
            message = f"the worker died {self._crashes} times without finishing a step"
            raise Unavailable(message, hint="check the machine's free memory, or use a smaller model or context", retry_after=wait)

    def _note_crash(self, worker: WorkerProcess) -> None:
        # Every step of a worker reports its death; count it once.
        if worker is not self._crashed:
            self._crashed = worker
            self._crashes += 1
            self._last_crash = time.monotonic()

    def _event(self, kind: StepEventKind, payload: JsonValue, request: StepRequest) -> StepEvent:
        if kind is StepEventKind.TEXT:
            return TextDelta(text=cast(str, payload))
        if kind is StepEventKind.CALL:
            call = ToolCall.model_validate({"id": f"call_{token_hex(8)}", **cast("dict[str, JsonValue]", payload)})
            check_arguments(call, request.tools)
            return ToolCalled(call=call)
        if kind is StepEventKind.FINISHED:
            return _finished_event(cast("dict[str, JsonValue]", payload), self.card.model)
        raise error_from_frame(payload)


def check_installed(*modules: str, extra: str) -> None:
    """Raise `ConfigError` if one of the engine's Python packages is missing."""
    for module in modules:
        with suppress(ModuleNotFoundError):
            if find_spec(module) is not None:
                continue
        raise ConfigError(f"the Python package {module} is not installed", hint=f"pip install 'nearfar[{extra}]'")


def check_counts(**counts: int | None) -> None:
    """Raise `ConfigError` for a number that is given and below 1."""
    for name, count in counts.items():
        if count is not None and count < 1:
            raise ConfigError(f"{name} is {count}", hint=f"give a {name} of at least 1")


def check_default_adapters(adapter: str | None, call_adapter: str | None, known: Collection[str]) -> None:
    """Raise `ConfigError` for a default that is not among the adapters."""
    for name in (adapter, call_adapter):
        if name is not None and name not in known:
            hint = f"name one of: {', '.join(known)}" if known else "give the adapter's file in adapters"
            raise ConfigError(f"there is no adapter {name!r}", hint=hint)


def _finished_event(payload: dict[str, JsonValue], model: str) -> Finished:
    performance = payload.get("performance")
    counts = {name: payload[name] for name in ("input_tokens", "output_tokens", "reasoning_tokens", "cached_tokens")}
    return Finished(
        reason=FinishReason(str(payload["reason"])),
        usage=Usage.model_validate(counts),
        model=model,
        confidence=cast("float | None", payload["confidence"]),
        performance=None if performance is None else Performance.model_validate(performance),
        logprobs=tuple(map(TokenLogprob.model_validate, cast("list[JsonValue]", payload["logprobs"]))),
        stop=cast("str | None", payload["stop"]),
    )


def _check_answer(text: str, reason: FinishReason, request: StepRequest) -> None:
    """Raise `InvalidOutput` if a final answer does not keep `output_schema`."""
    if request.output_schema is None or reason is FinishReason.TOOL_CALLS:
        return
    try:
        parse_output(text, request.output_schema)
    except InvalidOutput as error:
        if reason is FinishReason.LENGTH:
            raise InvalidOutput(f"the JSON output was cut after {len(text)} characters", hint="give a larger max_output_tokens") from error
        raise
