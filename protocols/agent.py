"""`Agent`, the interface of everything that can take one turn of a conversation, and `AgentCard`, which describes an agent."""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing, nullcontext
from datetime import UTC, date, datetime
from decimal import Decimal
from enum import StrEnum
from math import exp
from typing import Any, Final, Protocol, Self, cast, runtime_checkable

from pydantic import Field, model_validator

from .errors import ConfigError, DeadlineExceeded, InternalError, InvalidOutput, NearfarError
from .secrets import log_defect
from .steps import Finished, StepEvent, StepReply, StepRequest, TextDelta, ToolCall, ToolCalled, Usage, Value

_MILLION = Decimal(1_000_000)


class PowerSource(StrEnum):
    """The device's source of power."""

    MAINS = "mains"
    BATTERY = "battery"


class Thermal(StrEnum):
    """The device's thermal state, in the terms of Apple's and Android's interfaces."""

    NOMINAL = "nominal"
    FAIR = "fair"
    SERIOUS = "serious"
    """Performance is held back."""
    CRITICAL = "critical"
    """The device has to cool down."""


class DeviceState(Value):
    """The state of a device at one moment. None means unknown, which is not the same as fine."""

    battery: float | None = Field(default=None, ge=0, le=1)
    """Share of a full charge."""
    power_source: PowerSource | None = None
    """Mains or battery; None: unknown."""
    thermal: Thermal | None = None
    """How hot the device is; None: unknown."""
    free_memory_bytes: int | None = Field(default=None, ge=0)
    """Memory that is free; None: unknown."""
    is_offline: bool | None = None
    """No network can be reached."""


DeviceStateSource = Callable[[], DeviceState]
"""Looks at the device; called once for each decision, so it has to be quick."""


_LAPTOP_JOULES: Final = 180_000.0
"""A full battery of 50 Wh."""
_AMBIENT_CELSIUS: Final = 25.0
_CELSIUS_PER_WATT: Final = 3.0
_SECONDS_TO_WARM: Final = 60.0
"""Seconds until a change of temperature is two thirds done (the time constant)."""
_FROM_CELSIUS: Final = {Thermal.CRITICAL: 95.0, Thermal.SERIOUS: 85.0, Thermal.FAIR: 70.0, Thermal.NOMINAL: _AMBIENT_CELSIUS}
_BYTES_FREE: Final = 8 << 30


class SimulatedDevice:
    """A `DeviceStateSource`: calling it returns the device's state.

    It starts as a laptop on battery, fully charged, cool and online. Time passes only in `run`, and `set` changes fields. The
    temperature follows Newton's law of cooling towards the value that the drawn power leads to.
    """

    def __init__(self, *, battery_joules: float = _LAPTOP_JOULES, celsius_per_watt: float = _CELSIUS_PER_WATT) -> None:
        """Set `battery_joules`, the energy of a full charge, and `celsius_per_watt`, the final rise over room temperature per watt."""
        self._battery_joules = battery_joules
        self._celsius_per_watt = celsius_per_watt
        self.celsius = _AMBIENT_CELSIUS
        self._state = DeviceState(
            battery=1.0, power_source=PowerSource.BATTERY, thermal=Thermal.NOMINAL, free_memory_bytes=_BYTES_FREE, is_offline=False
        )

    def __call__(self) -> DeviceState:
        """Return the device's state now."""
        return self._state

    def set(self, **changes: Any) -> None:  # noqa: ANN401 - the fields of `DeviceState`, which it checks
        """Change fields of the state; None makes one unknown. The `changes` are fields of `DeviceState`; setting `thermal` also sets the
        temperature."""
        self._state = DeviceState.model_validate({**self._state.model_dump(), **changes})
        if self._state.thermal is not None and "thermal" in changes:
            self.celsius = _FROM_CELSIUS[self._state.thermal]

    def run(self, seconds: float, *, watts: float) -> None:
        """Let `seconds` pass at a constant power of so many `watts`. On the mains the battery neither drains nor charges; unknown values
        stay unknown."""
        settles_at = _AMBIENT_CELSIUS + watts * self._celsius_per_watt
        self.celsius = settles_at + (self.celsius - settles_at) * exp(-seconds / _SECONDS_TO_WARM)
        state = self._state
        battery = state.battery
        if battery is not None and state.power_source is not PowerSource.MAINS:
            battery = max(battery - seconds * watts / self._battery_joules, 0.0)
        thermal = None if state.thermal is None else _thermal(self.celsius)
        self._state = state.model_copy(update={"battery": battery, "thermal": thermal})


def _thermal(celsius: float) -> Thermal:
    return next((thermal for thermal, start in _FROM_CELSIUS.items() if celsius >= start), Thermal.NOMINAL)


class Side(StrEnum):
    """The place where an agent computes, seen from the user's device."""

    NEAR = "near"
    """On the user's own device; text does not leave it."""
    FAR = "far"
    """In the cloud or on another machine."""


class Capabilities(Value):
    """The features that an agent guarantees. A flag is true only if the conformance suite proves it."""

    tools: bool = False
    """Emits `ToolCalled` with arguments valid against the tool's schema."""
    json_schema: bool = False
    """`output_schema` is enforced while decoding, or validated with a typed error."""
    confidence: bool = False
    """`Finished.confidence` is present."""
    seed: bool = False
    """Same request and seed give the same text."""
    cancellation: bool = False
    """Closing the stream stops the compute, not only the stream."""
    logprobs: bool = False
    """`Finished.logprobs` has the tokens of the text, if the request sets `top_logprobs`."""
    images: bool = False
    """Reads images in messages."""
    files: bool = False
    """Reads PDF documents in messages."""
    reasoning_limit: bool = False
    """Answers once it has reasoned for `max_reasoning_tokens`, and reports its reasoning tokens."""


class Limits(Value):
    """Bounds that the agent enforces."""

    context_tokens: int | None = Field(default=None, gt=0)
    """Prompt and output together; None: unknown."""
    max_output_tokens: int | None = Field(default=None, gt=0)
    """Tokens of output per step; None: as many as fit."""
    concurrency: int = Field(default=1, gt=0)
    """Steps that make progress at the same time; further ones wait."""


_HIGHEST_RATE: Final = 10**9
"""US dollars per million tokens: far beyond any provider's. Sums at such rates can be computed with."""


class Rates(Value):
    """US dollars per million tokens."""

    input: Decimal = Field(ge=0, le=_HIGHEST_RATE)
    """Dollars per million tokens of the prompt."""
    output: Decimal = Field(ge=0, le=_HIGHEST_RATE)
    """Dollars per million tokens of the answer."""
    cached_input: Decimal | None = Field(default=None, ge=0, le=_HIGHEST_RATE)
    """None: tokens read from a prefix cache cost as much as others."""
    cache_write: Decimal | None = Field(default=None, ge=0, le=_HIGHEST_RATE)
    """None: tokens written to a prefix cache cost as much as others."""

    @property
    def dearest_input(self) -> Decimal:
        """Return the highest price of an input token."""
        return max(price for price in (self.input, self.cached_input, self.cache_write) if price is not None)


class LongPrompt(Rates):
    """The rates of a whole step, its output included, whose prompt is longer than a number of tokens."""

    above: int = Field(gt=0)
    """The rates of a whole step, output included, if its prompt is longer than `above` tokens."""


class Prices(Rates):
    """US dollars per million tokens, with the source they were read from."""

    long_prompts: tuple[LongPrompt, ...] = ()
    """Separate rates for long prompts: the highest threshold that a prompt exceeds decides."""
    source: str
    """Source of the prices, such as a web address."""
    as_of: date
    """Day on which they were read."""

    @model_validator(mode="after")
    def _thresholds_differ(self) -> Self:
        thresholds = [tier.above for tier in self.long_prompts]
        if len(set(thresholds)) != len(thresholds):
            raise ValueError(f"two rates for long prompts share one threshold: {sorted(thresholds)}")
        return self

    @classmethod
    def free(cls, source: str) -> Self:
        """Return prices of 0 as of today, for a model that costs nothing; `source` gives the reason."""
        return cls(input=Decimal(0), output=Decimal(0), source=source, as_of=datetime.now(UTC).date())

    @property
    def is_free(self) -> bool:
        """Return whether all prices are 0."""
        return not any(rates.dearest_input or rates.output for rates in (self, *self.long_prompts))

    def rates(self, prompt_tokens: float) -> Rates:
        """Return the rates of a step whose prompt has `prompt_tokens`."""
        exceeded = [tier for tier in self.long_prompts if prompt_tokens > tier.above]
        return max(exceeded, key=lambda tier: tier.above, default=self)

    def dollars(self, usage: Usage) -> Decimal:
        """Return the price of one step's `usage`; a sum over steps may exceed a threshold that no step did."""
        rates = self.rates(usage.input_tokens)
        cached = rates.input if rates.cached_input is None else rates.cached_input
        cache_write = rates.input if rates.cache_write is None else rates.cache_write
        # Counts are bounded by the prompt, because otherwise a wrong one would earn money.
        cached_tokens = min(usage.cached_tokens, usage.input_tokens)
        stored_tokens = min(usage.cache_write_tokens, usage.input_tokens - cached_tokens)
        fresh_tokens = usage.input_tokens - cached_tokens - stored_tokens
        read = fresh_tokens * rates.input + cached_tokens * cached + stored_tokens * cache_write
        return (read + usage.output_tokens * rates.output) / _MILLION

    def highest(self, prompt_tokens: int) -> Rates:
        """Return bounds on the rates of a step whose prompt has at most `prompt_tokens`, however the cache is used."""
        possible = [self, *(tier for tier in self.long_prompts if prompt_tokens > tier.above)]
        return Rates(input=max(rates.dearest_input for rates in possible), output=max(rates.output for rates in possible))

    def most_dollars(self, prompt_tokens: int, output_tokens: int) -> Decimal:
        """Return the most that a step with `prompt_tokens` of prompt and `output_tokens` of output can cost."""
        rates = self.highest(prompt_tokens)
        return (prompt_tokens * rates.input + output_tokens * rates.output) / _MILLION


class Execution(Value):
    """The engine and hardware that run an agent's model, read back after loading rather than copied from the configuration."""

    engine: str = Field(min_length=1)
    """`llama.cpp` or `onnxruntime-genai`."""
    provider: str = Field(min_length=1)
    """Name of the device, if the backend reports it."""
    device: str = ""
    """The device's own name, where the backend tells it."""
    layers: int | None = Field(default=None, ge=0)
    """Layers of the model."""
    offloaded_layers: int | None = Field(default=None, ge=0)
    """Number of layers that do not run on the CPU; None: the engine does not report it."""
    threads: int | None = Field(default=None, gt=0)
    """CPU threads that compute a single token."""
    extra_buffers_off: str = ""
    """Reason why llama.cpp's extra buffer types (weights rearranged for the CPU) are off; empty if they are on."""


class AgentCard(Value):
    """An agent's description of itself."""

    name: str = Field(min_length=1)
    """Name of the agent."""
    side: Side
    """Its side."""
    model: str = Field(min_length=1)
    """Name of its model."""
    description: str = ""
    """A sentence about it, for people."""
    world: str | None = None
    """The only subject that the model knows, for the shipped models, which are trained on one small world; None: general."""
    capabilities: Capabilities = Capabilities()
    """Capabilities that it claims."""
    limits: Limits = Limits()
    """Limits of its steps."""
    prices: Prices | None = None
    """None: the price is unknown, which is not the same as free."""
    parameters: int | None = Field(default=None, gt=0)
    """Weights of the model; None: unknown."""
    adapters: tuple[str, ...] = ()
    """Names of the LoRA adapters that a step may ask for."""
    execution: Execution | None = None
    """The engine and hardware that run the model; None: unknown, as for a provider's model."""
    kv_bytes_per_token: int | None = Field(default=None, gt=0)
    """Bytes that one token of context takes in the model's key-value cache, summed over all layers; None: unknown."""
    provider: str = Field(default="", max_length=100)
    """The provider's name in OpenTelemetry's conventions, such as `openai`; empty for an engine of nearfar's."""


class StepStream(Protocol):
    """A step under way: an async iterator that must be closed. Closing it early cancels the step."""

    def __aiter__(self) -> AsyncIterator[StepEvent]: ...
    async def __anext__(self) -> StepEvent: ...
    async def aclose(self) -> None: ...


@runtime_checkable
class Agent(Protocol):
    """Anything that can take one turn of a conversation.

    `step` is written as an async generator. It raises a `NearfarError` and nothing else; `protocols.testing.agent_conformance`
    checks an implementation.
    """

    @property
    def card(self) -> AgentCard: ...

    def step(self, request: StepRequest) -> AsyncIterator[StepEvent]:
        """Take one turn: stream text and tool calls for the conversation in `request`, then one `Finished`."""
        ...

    async def aclose(self) -> None:
        """Release what the agent holds; running steps end with `Unavailable`. May be called twice."""
        ...


@runtime_checkable
class CountsTokens(Protocol):
    """An agent that can count the tokens of a prompt by its model's own tokenizer and template."""

    async def count_tokens(self, request: StepRequest) -> int:
        """Return the tokens of the prompt of the step that a `request` asks for, as `Finished.usage` would count them."""
        ...


def stream(agent: Agent, request: StepRequest) -> aclosing[StepStream]:
    """Return `agent.step(request)` as a context manager that closes the stream on exit, which cancels an unfinished step. Takes an `agent`
    and a `request` as `complete` does."""
    return aclosing(cast(StepStream, agent.step(request)))


async def complete(agent: Agent, request: StepRequest) -> StepReply:
    """Run one step of `agent` to its end and collect it; `request` is the conversation so far, the tools and the limits.

    Raises `InvalidOutput` if the stream ends without `Finished`, and whatever the agent raises.
    """
    text: list[str] = []
    calls: list[ToolCall] = []
    async with stream(agent, request) as events:
        async for event in events:
            match event:
                case TextDelta():
                    text.append(event.text)
                case ToolCalled():
                    calls.append(event.call)
                case Finished():
                    return StepReply(text="".join(text), tool_calls=tuple(calls), finished=event)
    raise InvalidOutput(f"agent {agent.card.name!r} ended its stream without a result")


logger = logging.getLogger(__name__)

_EVENTS_PER_TURN = 64
"""Number of events after which an agent that never waits has to let other tasks run."""


async def run_step(agent: Agent, request: StepRequest, emit: Callable[[StepEvent], Awaitable[None]]) -> NearfarError | None:
    """Let `agent` run the step within its timeout and pass each event to `emit`. Return the error that ended it, or None after
    `Finished`.

    Any exception but a `NearfarError` is a defect of the agent: it is logged, and the other side only gets an `InternalError`.
    """
    limit = None if request.timeout is None else asyncio.timeout(request.timeout)
    try:
        async with limit or nullcontext():
            await _pass_on(agent, request, emit)
    except NearfarError as error:
        return error
    except Exception as defect:  # the boundary of a task: without this, the error of the agent would be lost
        if limit is not None and limit.expired():
            return DeadlineExceeded("the step took longer than its timeout")
        log_defect(logger, f"agent {agent.card.name!r} failed in a step", defect)
        return InternalError("the agent failed unexpectedly", hint="the server's log has the details")
    return None


async def _pass_on(agent: Agent, request: StepRequest, emit: Callable[[StepEvent], Awaitable[None]]) -> None:
    count = 0
    async with stream(agent, request) as events:
        async for event in events:
            await emit(event)
            if isinstance(event, Finished):
                return
            count += 1
            if not count % _EVENTS_PER_TURN:
                await asyncio.sleep(0)
    raise InvalidOutput(f"agent {agent.card.name!r} ended its stream without a result")


_HINT = "use it in one event loop (call asyncio.run once), or make one per loop"


class LoopBound:
    """The event loop in which connections were first opened; in another loop they would wait for ever."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None

    def require(self, name: str) -> None:
        """Bind to the running loop. Raise `ConfigError` if another loop was bound before; `name` names the object in the message."""
        running = asyncio.get_running_loop()
        if self._loop is None:
            self._loop = running
        elif self._loop is not running:
            raise other_loop(name)


def other_loop(name: str) -> ConfigError:
    """Return the error for an object that is used in two event loops."""
    return ConfigError(f"{name} belongs to another event loop", hint=_HINT)
