"""The configuration of a provider agent, and the agent it describes."""

import re
from typing import TYPE_CHECKING, Any, Literal, Self
from urllib.parse import urlsplit

from pydantic import Field, ValidationInfo, field_validator, model_validator
from pydantic_core import PydanticCustomError

from ..protocols import ConfigError, Effort, Limits, Prices
from ..protocols.address import is_this_machine
from ..protocols.attachments import Value
from ..protocols.limits import most_calls_upstream
from ..protocols.secrets import StoredKey
from .dialect import Dialect, openai_traits, reads_images, takes_budget
from .prices import price_at, price_of

if TYPE_CHECKING:
    from .provider import ProviderAgent

_ENDPOINT = re.compile(r"/(?:chat/completions|completions|responses|messages|models/[^/]+:\w+)/?$")
"""Endpoint paths that the dialects append to the root themselves."""


class A2aAgentConfig(Value):
    """A `[far]` section of an agent that is reached by the A2A protocol: it takes whole tasks, and answers in text."""

    provider: Literal["a2a"]
    """`a2a`: an agent of the A2A protocol 1.0."""
    url: str
    """Address below which its card is found. A host of the user's own network may be named here; the card leads to public ones only."""
    card: str = Field(default="", pattern=r"^(sha256:[0-9a-f]{64})?$")
    """Hash of the card that the user has accepted. An agent without one, or with a card that has changed since, is refused; the error
    tells its hash."""
    token_variable: str | None = Field(default=None, pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")
    """Environment variable, or keyring entry, with its bearer token; None: it needs none."""
    concurrency: int = Field(default=16, gt=0, le=1024)
    """Tasks that it is given at the same time; further ones wait."""
    connect_timeout: float = Field(default=10.0, gt=0)
    """Seconds to connect."""
    idle_timeout: float = Field(default=300.0, gt=0)
    """Seconds of silence after which a step fails."""
    step_timeout: float = Field(default=600.0, gt=0)
    """Seconds for a whole step."""
    instructions: str = ""
    """Instructions in front of each step that this agent takes for a task, before those of the file and of the task."""

    @field_validator("url")
    @classmethod
    def _address_is_complete(cls, value: str) -> str:
        return api_root(value)

    @model_validator(mode="after")
    def _token_is_not_shown(self) -> Self:
        if self.token_variable is not None and self.url.startswith("http:") and not is_this_machine(self.host):
            raise ValueError("token_variable needs a url with https: the token would cross the network in plain text")
        return self

    @property
    def host(self) -> str:
        """Return the host of the url."""
        return (urlsplit(self.url).hostname or "").lower()


class ProviderConfig(Value):
    """One model at one provider, as in a configuration file. It names a key's variable, never the key."""

    provider: Literal["openai", "anthropic", "gemini"]
    """The API's dialect; "openai" also means every compatible server."""
    api: Literal["responses", "chat"] | None = None
    """OpenAI API to use. None: chat completions if `base_url` is set and for models up to GPT-4, else responses."""
    name: str | None = Field(default=None, min_length=1)
    """The agent's name; None: the model's."""
    base_url: str | None = None
    """Root of the API; None: the provider's own."""
    model: str | None = Field(default=None, min_length=1, validate_default=True)
    """Name of the model at the provider; None: the only one that the server at `base_url` has (only "openai")."""
    key_variable: str | None = Field(default=None, pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")
    """Environment variable, or keyring entry, with the key. None: the provider's usual one, or no key if `base_url` is set."""
    prices: Prices | None = None
    """None: the price from nearfar's table if it knows this model at the provider's own address, and 0 if `base_url` is this machine."""
    context_tokens: int | None = Field(default=None, gt=0)
    """Tokens that fit the model's context; None: not known."""
    max_output_tokens: int | None = Field(default=None, gt=0)
    """Most tokens of one answer; None: the provider's default."""
    concurrency: int | None = Field(default=None, gt=0)
    """HTTP calls at the same time; further ones wait. None: a quarter of the files that the process may have open, 1,024 at most."""
    tools: bool = True
    """False: the server does not enforce tool calls; steps with tools are refused."""
    json_schema: Literal["native", "llama"] | None = "native"
    """Support for output schemas: the API's own form, llama-cpp-python's form, or none."""
    logprobs: bool = False
    """Ask for token log-probabilities, which give steps a confidence (only "openai")."""
    images: bool | None = None
    """The model reads images; None: decided by its name."""
    files: bool | None = None
    """The server takes PDF documents for the model; None: at a provider's own address, if the model reads images."""
    seed: bool = False
    """The server repeats its text for the same seed, as some local servers do and hosted ones do not (only "openai")."""
    temperature: bool | None = None
    """True if the model takes a temperature; None: decided by its name."""
    reasoning: bool | None = None
    """True if the model is a reasoning model of OpenAI's, which takes `max_completion_tokens` and an effort, and neither temperature nor
    stop sequences; None: decided by its name (only "openai")."""
    effort: Effort | None = None
    """Thinking effort in steps that state none; None: the model's default."""
    connect_timeout: float = Field(default=10.0, gt=0)
    """Seconds to connect."""
    idle_timeout: float = Field(default=300.0, gt=0)
    """Seconds of silence after which a step fails."""
    step_timeout: float = Field(default=600.0, gt=0)
    """Seconds for a whole step, retries included."""
    max_calls: int = Field(default=3, ge=1, le=10)
    """Upstream calls per step, retries included."""
    instructions: str = ""
    """Instructions in front of each step that this agent takes for a task, before those of the file and of the task."""

    @field_validator("base_url")
    @classmethod
    def _address_is_complete(cls, value: str | None) -> str | None:
        return None if value is None else api_root(value)

    @field_validator("model")
    @classmethod
    def _model_is_known(cls, value: str | None, info: ValidationInfo) -> str | None:
        if value is None and (info.data.get("provider") != "openai" or info.data.get("base_url") is None):
            raise PydanticCustomError("missing", "Field required")
        return value

    @model_validator(mode="after")
    def _options_fit_the_dialect(self) -> Self:
        is_chat_only = self.logprobs or self.seed or self.json_schema == "llama"
        if self.provider != "openai" and (is_chat_only or self.api or self.reasoning is not None):
            raise ValueError('api, reasoning, logprobs, seed and json_schema = "llama" exist only for provider = "openai"')
        if self.api == "responses" and is_chat_only:
            raise ValueError('logprobs, seed and json_schema = "llama" do not exist in the responses API: remove them, or set api = "chat"')
        if self.effort not in (None, Effort.NONE) and self.reasoning is False:
            raise ValueError("effort is for models that reason: remove it, or remove reasoning = false")
        return self

    @property
    def sends_key_in_plain_text(self) -> bool:
        """Return whether a key would leave this machine without TLS, readable on the network."""
        parts = urlsplit(self.base_url or "")
        return self.key_variable is not None and parts.scheme == "http" and not is_this_machine(parts.hostname or "")

    @property
    def reads_images(self) -> bool:
        """Return whether the model reads images."""
        return reads_images(self.model or "", hosted=self.base_url is None) if self.images is None else self.images

    @property
    def reads_files(self) -> bool:
        """Return whether the model reads PDF documents."""
        return self.reads_images and (self.base_url is None or self.provider != "openai") if self.files is None else self.files

    @property
    def speaks_responses(self) -> bool:
        """Return whether the server is used over OpenAI's responses API."""
        if self.provider != "openai" or self.api is not None:
            return self.api == "responses"
        is_chat_only = self.base_url is not None or self.logprobs or self.seed or self.json_schema == "llama"
        return not is_chat_only and not openai_traits(self.model or "", hosted=True, reasoning=self.reasoning).stops


def build_provider(config: ProviderConfig) -> "ProviderAgent":
    """Build the agent that `config` describes. Read no key and open no connection: the first step does.

    Raise `ConfigError` if the cloud extra is not installed.
    """
    # Here, so that a configuration can be read and checked without the extra.
    try:
        from .provider import ProviderAgent, Timeouts
    except ModuleNotFoundError as error:
        raise ConfigError(f"providers need the module {error.name}", hint="pip install 'nearfar[cloud]'") from error
    from .failures import RetryPolicy

    if config.model is None:
        raise ConfigError("the model of the far agent is not known yet", hint="name it, or open the agent as a gateway does")
    dialect = _dialect(config)
    hosted = config.base_url is None
    variable = config.key_variable or (dialect.default_key_variable if hosted else None)
    return ProviderAgent(
        dialect,
        config.model,
        key=None if variable is None else StoredKey(variable),
        base_url=config.base_url,
        name=config.name,
        limits=_limits(config),
        prices=prices_of(config),
        timeouts=Timeouts(connect=config.connect_timeout, idle=config.idle_timeout, step=config.step_timeout),
        retry=RetryPolicy(calls=config.max_calls),
    )


def api_root(value: str) -> str:
    """Return the root of an API. Raise `ValueError`, which never quotes it: it may hold a password."""
    if not _is_address(value):
        raise ValueError("give the whole address, such as http://127.0.0.1:8000/v1")
    parts = urlsplit(value)
    if parts.username is not None or parts.password is not None or parts.query or parts.fragment:
        raise ValueError("no credentials, query or fragment in base_url: name the key's environment variable in key_variable")
    if ending := _ENDPOINT.search(parts.path):
        raise ValueError(f"base_url is the root of the API: leave out {ending[0]}")
    return value


def _is_address(text: str) -> bool:
    try:
        parts = urlsplit(text)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0 and not any(map(str.isspace, text))
    except ValueError:  # not passed on: it quotes what may be a password
        return False


def _limits(config: ProviderConfig) -> Limits:
    concurrency = config.concurrency or most_calls_upstream()
    return Limits(context_tokens=config.context_tokens, max_output_tokens=config.max_output_tokens, concurrency=concurrency)


def prices_of(config: ProviderConfig) -> Prices | None:
    """Return the prices in the configuration, or else the table's, or 0 for a server on this machine; None: unknown.

    Raise `ConfigError` if an imported table cannot be read.
    """
    if config.prices is not None:
        return config.prices
    if config.base_url is None:
        return price_of(config.provider, config.model or "")
    host = urlsplit(config.base_url).hostname or ""
    if is_this_machine(host):
        return Prices.free("served on this machine")
    return price_at(host, config.model or "") if config.provider == "openai" else None


def usual_key(provider: Literal["openai", "anthropic", "gemini"]) -> StoredKey:
    """Return the key that a provider's own API uses by default."""
    return StoredKey(_dialect(ProviderConfig(provider=provider, model="any")).default_key_variable)


def _dialect(config: ProviderConfig) -> Dialect:
    match config.provider:
        case "openai" if config.speaks_responses:
            from .responses import ResponsesDialect

            return ResponsesDialect(
                tools=config.tools,
                json_schema=config.json_schema is not None,
                images=config.reads_images,
                files=config.reads_files,
                temperature=config.temperature,
                reasoning=config.reasoning,
                effort=config.effort,
            )
        case "openai":
            from .openai import OpenAIDialect

            return OpenAIDialect(
                hosted=config.base_url is None,
                tools=config.tools,
                json_schema=config.json_schema,
                logprobs=config.logprobs,
                images=config.reads_images,
                files=config.reads_files,
                seed=config.seed,
                temperature=config.temperature,
                reasoning=config.reasoning,
                effort=config.effort,
            )
    given: dict[str, Any] = {
        "tools": config.tools,
        "json_schema": config.json_schema is not None,
        "images": config.reads_images,
        "files": config.reads_files,
        "temperature": config.temperature,
        "effort": config.effort,
    }
    if config.provider == "anthropic":
        from .anthropic import AnthropicDialect

        return AnthropicDialect(**given)
    from .gemini import GeminiDialect

    return GeminiDialect(**given, reasoning_limit=takes_budget(config.model or ""))


class GatewayLimits(Value):
    """Limits of each caller, the `[gateway]` section. Callers are identified by their tokens."""

    requests_per_second: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    """Steps that a caller may begin, those of one second at once; None: no limit."""
    tokens_per_minute: int | None = Field(default=None, gt=0)
    """Tokens read and written. A prompt counts when it arrives, the rest when it is known; any excess delays the next steps."""
    concurrent: int | None = Field(default=None, gt=0)
    """Steps of one caller at the same time; further ones wait. None: as many as the agent takes."""
    waiting: int = Field(default=1024, ge=0)
    """Steps of one caller that may wait for their turn; further ones are refused."""
    longest_wait: float = Field(default=20.0, gt=0, allow_inf_nan=False)
    """Seconds that a step waits for its turn before it is refused."""
