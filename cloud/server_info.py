"""Ask a near server which models it has, where they really run and how long their context is; and find the servers that run here."""

import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from types import TracebackType
from typing import Final, Self

import anyio
import anyio.to_thread
import httpx

from ..protocols import ConfigError, NearfarError, NoSuchModel, ProviderAuthError, RequestRefused, Stalled, StepLost, Unavailable
from ..protocols.secrets import StoredKey, quote
from ..protocols.validation import parse_json
from .config import ProviderConfig
from .connections import near_client, provider_client, tls_context, unpacks_bounded
from .dialect import JsonObject, as_count, as_name, as_object, as_objects, as_text
from .failures import encoding_error, error_for, fault_of, redirect_error, transport_errors
from .near_server import PROGRAMS, NearServerConfig

_SECONDS: Final = 10.0
"""For one question; a server that loads a model answers these at once all the same."""
_GLANCE_SECONDS: Final = 0.8
_LONGEST_ANSWER: Final = 8 << 20
_MISSING: Final = (404, 405, 501)
_KEY_HINT: Final = "set key_variable in the server's section of nearfar.toml to the name of the variable that holds its key"
_SHOWN: Final = 20
"""Number of models that an error lists."""
_CLOUD_NAME: Final = re.compile(r":(?:.*-)?cloud$", re.IGNORECASE)
"""Names of the models that Ollama forwards to its own cloud, also where only its OpenAI API can be reached."""
_OLLAMA_SMALLEST_CONTEXT: Final = 2048
"""Ollama's default in the versions that do not report the context; longer prompts are cut without a word."""
_NUM_CTX: Final = re.compile(r"^num_ctx\s+(\d{1,9})\s*$", re.MULTILINE)
_CONCURRENCY: Final = {"vllm": 32}
"""Steps that a program computes at the same time, if it does not report it: one, where it may be set to one."""


@dataclass(frozen=True, slots=True)
class ServedModel:
    """A model that a server has."""

    name: str
    context_tokens: int | None = None
    is_loaded: bool = False
    remote_host: str = ""
    """The cloud that runs the model, if the server on this machine only forwards to it."""
    is_chat: bool = True
    """False for a model of embeddings."""
    reads_images: bool = False

    @property
    def is_near(self) -> bool:
        """Return whether it can serve steps on the server itself."""
        return self.is_chat and not self.remote_host


@dataclass(frozen=True, slots=True)
class ServerState:
    """The answers of a server about itself."""

    program: str
    """The program that answered, which need not be the configured one: a key of `PROGRAMS`, or "openai"."""
    models: tuple[ServedModel, ...]
    concurrency: int = 1
    """Steps that make progress at the same time."""


@dataclass(frozen=True, slots=True)
class ModelTraits:
    """The statements of a server about one model."""

    context_tokens: int | None = None
    takes_tools: bool | None = None
    """None: it does not say."""
    thinks: bool = False
    cuts_prompts: bool = False
    """A prompt that is too long is cut without an error."""
    reads_images: bool = False


class ModelServer:
    """A server's answers about its models. Use it as an async context manager.

    Every question may raise `Unavailable` if no server is there, `Stalled`, `StepLost`, `ProviderAuthError`, `RequestRefused` for a web
    page or a redirect, and `ConfigError` for an address that the client does not go to.
    """

    def __init__(
        self,
        base_url: str,
        client: httpx.AsyncClient,
        *,
        label: str,
        key: str | None = None,
        start: str = "",
        seconds: float = _SECONDS,
    ) -> None:
        """Ask by `client`, which is closed with this object.

        Args:
            base_url: root of OpenAI's API there.
            client: reaches the server.
            label: the server's name for messages.
            key: the server's key; None: it needs none.
            start: the command that starts the server.
            seconds: for each question.
        """
        self._base_url = base_url.rstrip("/")
        self._root = self._base_url.removesuffix("/v1")
        self._label = label
        self._start = start
        self._headers = {} if key is None else {"Authorization": f"Bearer {key}"}
        self._client = client
        self._seconds = seconds

    @classmethod
    def near(
        cls, config: NearServerConfig, key: str | None = None, *, seconds: float = _SECONDS, client: httpx.AsyncClient | None = None
    ) -> "ModelServer":
        """Return a near server, whose address has to be known; see `NearServerConfig.located`. Without `client`, it gets its own."""
        base_url = config.base_url or ""
        client = client or near_client(base_url, httpx.Timeout(seconds), trusted=config.trusted)
        start = PROGRAMS[config.provider].start if config.provider in PROGRAMS else ""
        return cls(base_url, client, label=config.label, key=key, start=start, seconds=seconds)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        await self._client.aclose()

    async def look(self) -> ServerState:
        """Return what the server is and which models it has. Raise `RequestRefused` for a server without OpenAI's API."""
        listed = await self._object(f"{self._base_url}/models")
        if listed is None or "data" not in listed:
            message = f"{self._place} at {self._root} has no list of models in OpenAI's form"
            raise RequestRefused(message, hint="check base_url, and update the server")
        entries = [entry for entry in as_objects(listed["data"]) if as_name(entry.get("id"))]
        return await self._llama_server(entries) or await self._lm_studio() or await self._ollama() or _openai(entries)

    async def traits(self, state: ServerState, model: str) -> ModelTraits:
        """Return what the server says about a model, which should be loaded by now. Raise `ConfigError` if a cloud runs it."""
        if state.program == "ollama":
            return await self._ollama_traits(model)
        if state.program == "lmstudio":
            state = await self._lm_studio() or state
        found = next((each for each in state.models if each.name == model), ServedModel(model))
        return ModelTraits(context_tokens=found.context_tokens, reads_images=found.reads_images)

    async def refuse_cloud(self, model: str) -> None:
        """Raise `ConfigError` if the model of an Ollama has meanwhile become one that a cloud runs: its name can be given to another."""
        await self._shown_by_ollama(model)

    async def _llama_server(self, entries: Sequence[JsonObject]) -> ServerState | None:
        properties = await self._page("/props")
        if "default_generation_settings" not in properties:
            return None
        context = as_count(as_object(properties["default_generation_settings"]).get("n_ctx")) or None
        sees = as_object(properties.get("modalities")).get("vision") is True
        models = tuple(ServedModel(as_text(entry["id"]), context, is_loaded=len(entries) == 1, reads_images=sees) for entry in entries)
        return ServerState("llama-server", models, as_count(properties.get("total_slots")) or 1)

    async def _lm_studio(self) -> ServerState | None:
        listed = await self._page("/api/v0/models")
        models = tuple(
            ServedModel(
                as_text(entry.get("id")),
                as_count(entry.get("loaded_context_length")) or None,
                is_loaded=entry.get("state") == "loaded",
                is_chat=entry.get("type") not in ("embeddings", "embedding"),
                reads_images=entry.get("type") == "vlm",
            )
            for entry in as_objects(listed.get("data"))
            if as_name(entry.get("id")) and "state" in entry
        )
        return ServerState("lmstudio", models) if models else None

    async def _ollama(self) -> ServerState | None:
        listed = await self._page("/api/tags")
        if "models" not in listed or "version" not in await self._page("/api/version"):
            return None
        running = {name for name, _ in await self._ollama_running()}
        models = tuple(_ollama_model(entry, running) for entry in as_objects(listed["models"]) if as_name(entry.get("name")))
        return ServerState("ollama", models)

    async def _ollama_running(self) -> list[tuple[str, int]]:
        """Return the loaded models with the length of their context, 0 if it is not told."""
        running = await self._page("/api/ps")
        return [(as_text(entry.get("name")), as_count(entry.get("context_length"))) for entry in as_objects(running.get("models"))]

    async def _shown_by_ollama(self, model: str) -> JsonObject:
        shown = await self._object(f"{self._root}/api/show", {"model": model}) or {}
        if host := as_text(shown.get("remote_host")) or as_text(shown.get("remote_model")):
            raise _runs_in_a_cloud(model, host, self._base_url)
        return shown

    async def _ollama_traits(self, model: str) -> ModelTraits:
        shown = await self._shown_by_ollama(model)
        listed = shown.get("capabilities")
        able = listed if isinstance(listed, list) else None
        stated = _NUM_CTX.search(as_text(shown.get("parameters")))
        loaded = dict(await self._ollama_running()).get(model, 0)
        return ModelTraits(
            context_tokens=loaded or (int(stated[1]) if stated else 0) or _OLLAMA_SMALLEST_CONTEXT,
            takes_tools=None if able is None else "tools" in able,
            thinks=able is not None and "thinking" in able,
            cuts_prompts=True,
            reads_images=able is not None and "vision" in able,
        )

    async def _object(self, url: str, body: JsonObject | None = None) -> JsonObject | None:
        """Return the JSON object of an answer; None if the server has no such page."""
        try:
            with transport_errors(self._place, self._root, self._seconds), anyio.fail_after(self._seconds):
                async with self._client.stream("GET" if body is None else "POST", url, headers=self._headers, json=body) as response:
                    content = await self._read(response)
        except TimeoutError:  # it sends something now and then, but comes to no end
            raise Stalled(f"{self._place} did not answer within {self._seconds:g} s", hint="restart it, or correct base_url") from None
        except StepLost:
            raise
        except Unavailable as error:
            raise Unavailable(error.message, hint=self._hint(error.message), retry_after=error.retry_after) from None
        return self._parsed(response, content)

    def _hint(self, message: str) -> str:
        if "CERTIFICATE_VERIFY_FAILED" in message:
            return "set SSL_CERT_FILE to the PEM file of the authority that signed its certificate, and use a host that this names"
        return f"start it: {self._start}; or correct base_url" if self._start else "start it, or correct base_url"

    async def _page(self, path: str) -> JsonObject:
        """Return the JSON object of a page that only some programs have; {} if this one answers with something else."""
        try:
            return await self._object(self._root + path) or {}
        except (RequestRefused, ProviderAuthError):  # a web page, a redirect to one, or no access beyond OpenAI's API
            return {}

    async def _read(self, response: httpx.Response) -> bytes:
        encoding = response.headers.get("content-encoding", "")
        if not unpacks_bounded(encoding):
            raise encoding_error(self._place, encoding)
        received = bytearray()
        async for piece in response.aiter_bytes():
            received += piece
            if len(received) > _LONGEST_ANSWER:
                raise RequestRefused("the near server's description of itself does not end", hint="check base_url")
        return bytes(received)

    def _parsed(self, response: httpx.Response, body: bytes) -> JsonObject | None:
        if response.is_redirect:
            raise redirect_error(self._place, response.headers.get("location", ""))
        if response.status_code in _MISSING:
            return None
        if not response.is_success:
            error = error_for(fault_of(response.status_code, response.headers, body), provider=self._place)
            is_locked = isinstance(error, ProviderAuthError) and not self._headers
            raise ProviderAuthError(error.message, hint=_KEY_HINT) if is_locked else error
        try:
            return as_object(parse_json(body.decode("utf-8", errors="replace")))
        except ValueError:
            kind = quote(response.headers.get("content-type", "")) or "no content type"
            message = f"{self._place} answers with {kind!r} where an API answers with JSON"
            raise RequestRefused(message, hint="check base_url: another program may use this port") from None

    @property
    def _place(self) -> str:
        return f"the {self._label} server"


def _openai(entries: Sequence[JsonObject]) -> ServerState:
    is_vllm = any("max_model_len" in entry or entry.get("owned_by") == "vllm" for entry in entries)
    program = "vllm" if is_vllm else "openai"
    models = tuple(
        ServedModel(
            name := as_text(entry["id"]), as_count(entry.get("max_model_len")) or None, remote_host="" if is_vllm else _cloud_of(name)
        )
        for entry in entries
    )
    return ServerState(program, models, _CONCURRENCY.get(program, 1))


def _ollama_model(entry: JsonObject, running: set[str]) -> ServedModel:
    name = as_text(entry["name"])
    host = as_text(entry.get("remote_host")) or as_text(entry.get("remote_model")) or _cloud_of(name)
    family = as_text(as_object(entry.get("details")).get("family"))
    return ServedModel(name, is_loaded=name in running, remote_host=host, is_chat="bert" not in family)


def _cloud_of(name: str) -> str:
    """Return the cloud to which Ollama forwards a model of this name, or ""."""
    return "ollama.com" if _CLOUD_NAME.search(name) else ""


def choose_model(state: ServerState, wanted: str | None, config: NearServerConfig) -> str:
    """Return the name of the model to use, as the server writes it.

    Raise `NoSuchModel` that names the server's models, and `ConfigError` if the model runs elsewhere or several could be meant.
    """
    place = f"the {config.label} server at {config.base_url}"
    if wanted is None:
        return _only_model(state, place, [each for each in state.models if each.is_near])
    names = (wanted, f"{wanted}:latest")
    found = next((each for each in state.models if each.name in names or each.name.rsplit("/", 1)[-1] == wanted), None)
    if found is None:
        hint = f"ollama pull {wanted}" if state.program == "ollama" else "name one of its models, or load this one"
        raise NoSuchModel(f"{place} has no model {wanted!r}; {_listed(state)}", hint=hint)
    if found.remote_host:
        raise _runs_in_a_cloud(found.name, found.remote_host, config.base_url or "")
    return found.name


def _only_model(state: ServerState, place: str, usable: Sequence[ServedModel]) -> str:
    loaded = [each for each in usable if each.is_loaded]
    for found in (usable, loaded):
        if len(found) == 1:
            return found[0].name
    if usable:
        raise ConfigError(
            f"{place} has several models: {_listed(state)}", hint="say which one: PROVIDER:MODEL or ADDRESS#MODEL, or the key model"
        )
    raise NoSuchModel(f"{place} has no model to talk to", hint="load one first")


def _listed(state: ServerState) -> str:
    names = [quote(each.name) for each in state.models if each.is_chat]
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return f"it has {', '.join(names[:_SHOWN])}{more}" if names else "it has none"


def _runs_in_a_cloud(model: str, host: str, base_url: str) -> ConfigError:
    message = f"the model {model!r} runs at {quote(host)}, not on this machine: the server only forwards to it"
    return ConfigError(message, hint=f"choose another model, or use it as the far side: --far {base_url}#{model}")


async def with_only_model(config: ProviderConfig) -> ProviderConfig:
    """Return the configuration of a far agent with the only model that its server has.

    Raise `NoSuchModel` if it has none, `ConfigError` if it has several.
    """
    base_url = config.base_url or ""
    key = None if config.key_variable is None else StoredKey(config.key_variable)
    secret = None if key is None else await anyio.to_thread.run_sync(key.reveal, abandon_on_cancel=True)
    client = provider_client(base_url, httpx.Timeout(_SECONDS), tls_context())
    async with ModelServer(base_url, client, label="OpenAI-compatible", key=secret) as server:
        state = await server.look()
    return config.model_copy(
        update={"model": _only_model(state, f"the server at {base_url}", [each for each in state.models if each.is_chat])}
    )


@dataclass(frozen=True, slots=True)
class RunningServer:
    """A server that was found on this machine."""

    state: ServerState
    base_url: str
    provider: str
    """The provider whose usual address it has."""
    needs_key: bool = False
    """It lists its models only to those who have its key."""

    @property
    def label(self) -> str:
        """Return the name of the program that answered."""
        return PROGRAMS[self.state.program].label if self.state.program in PROGRAMS else "OpenAI API"

    def line(self, model: ServedModel) -> str:
        """Return the short form of a near agent with this model."""
        is_usual = self.state.program == self.provider
        return f"{self.provider}:{model.name}" if is_usual else f"{self.base_url}#{model.name}"


async def _running_server(config: NearServerConfig) -> RunningServer:
    base_url = config.base_url or ""
    async with ModelServer.near(config, seconds=_GLANCE_SECONDS) as server:
        try:
            return RunningServer(await server.look(), base_url, config.provider)
        except ProviderAuthError:
            return RunningServer(ServerState("openai", ()), base_url, config.provider, needs_key=True)


async def running_servers() -> list[RunningServer]:
    """Return the servers at the programs' usual addresses on this machine, within about a second."""
    found: list[RunningServer] = []

    async def look(config: NearServerConfig) -> None:
        with suppress(NearfarError):  # another program uses the port, or none does
            found.append(await _running_server(config.located()))

    with anyio.move_on_after(_GLANCE_SECONDS):
        async with anyio.create_task_group() as looking:
            for provider in PROGRAMS:
                looking.start_soon(look, NearServerConfig.model_validate({"provider": provider}))
    return sorted(found, key=lambda each: list(PROGRAMS).index(each.provider))
