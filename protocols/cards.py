"""What an agent says about itself: who it is, what it can do, what it costs."""

from datetime import UTC, date, datetime
from decimal import Decimal
from enum import StrEnum
from typing import Self

from pydantic import Field

from .messages import Value
from .steps import Usage

_MILLION = Decimal(1_000_000)


class Side(StrEnum):
    """Where an agent computes, seen from the user's device."""

    NEAR = "near"
    """On the user's own device; text does not leave it."""
    FAR = "far"
    """In the cloud or on another machine."""


class Capabilities(Value):
    """What an agent enforces, not what it attempts. A flag is true only if the conformance suite proves it."""

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


class Limits(Value):
    """Bounds that the agent enforces."""

    context_tokens: int | None = Field(default=None, gt=0)
    """Prompt and output together; None: unknown."""
    max_output_tokens: int | None = Field(default=None, gt=0)
    concurrency: int = Field(default=1, gt=0)
    """Steps that make progress at the same time; further ones wait."""


class Prices(Value):
    """US dollars per million tokens, with the source they were read from."""

    input: Decimal = Field(ge=0)
    output: Decimal = Field(ge=0)
    cached_input: Decimal | None = Field(default=None, ge=0)
    """None: cached tokens cost as much as others."""
    source: str
    as_of: date

    @classmethod
    def free(cls, source: str) -> Self:
        """Prices of 0 as of today, for a model that nobody is paid for; `source` says why."""
        return cls(input=Decimal(0), output=Decimal(0), source=source, as_of=datetime.now(UTC).date())

    @property
    def is_free(self) -> bool:
        """All prices are 0."""
        return not (self.input or self.output or self.cached_input)

    def dollars(self, usage: Usage) -> Decimal:
        """The price of `usage`."""
        cached = self.input if self.cached_input is None else self.cached_input
        cached_tokens = min(usage.cached_tokens, usage.input_tokens)  # otherwise a wrong count would earn money
        fresh_tokens = usage.input_tokens - cached_tokens
        total = fresh_tokens * self.input + cached_tokens * cached + usage.output_tokens * self.output
        return total / _MILLION


class Execution(Value):
    """What really runs an agent's model, read back once it is loaded, and never what was asked for."""

    engine: str = Field(min_length=1)
    """`llama.cpp` or `onnxruntime-genai`."""
    provider: str = Field(min_length=1)
    """The backend or execution provider, in lower case: `cpu`, `cuda`, `metal`, `vulkan`, `coreml`, `qnn` ..."""
    device: str = ""
    """The device's own name, where the backend tells it."""
    layers: int | None = Field(default=None, ge=0)
    """Layers of the model."""
    offloaded_layers: int | None = Field(default=None, ge=0)
    """Those of `layers` that do not run on the CPU; None: the engine does not tell."""
    threads: int | None = Field(default=None, gt=0)
    """CPU threads that compute a single token."""
    extra_buffers_off: str = ""
    """Why llama.cpp's extra buffer types, which hold weights rearranged for the CPU, are off; empty where they are not."""


class AgentCard(Value):
    """An agent's description of itself."""

    name: str = Field(min_length=1)
    side: Side
    model: str = Field(min_length=1)
    description: str = ""
    world: str | None = None
    """The only subject that the model knows (the shipped models are trained on one small world); None: general."""
    capabilities: Capabilities = Capabilities()
    limits: Limits = Limits()
    prices: Prices | None = None
    """None: the price is unknown, which is not the same as free."""
    parameters: int | None = Field(default=None, gt=0)
    """Weights of the model; None: unknown."""
    adapters: tuple[str, ...] = ()
    """Names of the LoRA adapters that a step may ask for."""
    execution: Execution | None = None
    """What really runs the model; None: unknown, as of a provider's."""
    kv_bytes_per_token: int | None = Field(default=None, gt=0)
    """Bytes that one token of context takes in the model's key-value cache, summed over all layers; None: unknown."""
