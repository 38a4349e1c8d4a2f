"""Find out what the model of a near server really does, and make the near agent of it: capabilities are probed, not believed.

A few short steps with a text of nearfar's own show whether the server enforces tool calls and JSON Schemas and sends log-probabilities.
Many servers accept such a parameter and ignore it, without an error.
"""

from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

import anyio.to_thread
import httpx

from ..protocols import (
    AgentCard,
    AgentError,
    ContextOverflow,
    DeadlineExceeded,
    Effort,
    Limits,
    Message,
    Prices,
    Stalled,
    StepEvent,
    StepReply,
    StepRequest,
    ToolChoice,
    ToolSpec,
    Unsupported,
    complete,
)
from ..protocols.secrets import Key, StoredKey
from .failures import RetryPolicy
from .near_server import NearServerConfig
from .openai import JsonSchemaForm, OpenAIDialect
from .provider import NearPlace, PlaceCheck, ProviderAgent, Timeouts
from .server_info import ModelServer, ModelTraits, ServerState, choose_model

_LOADING_SECONDS: Final = 180.0
"""For the first trial, before which a server may have to load the model."""
_TRIAL_SECONDS: Final = 45.0
"""For each further one, at a slow machine's pace."""
_FEW_TOKENS: Final = 8
_TRIAL_TOKENS: Final = 400
"""Room for a model that thinks first."""
_BYTES_PER_TOKEN: Final = 4
_TOOL: Final = ToolSpec(
    name="record_number",
    description="Records a number.",
    parameters={"type": "object", "properties": {"number": {"type": "integer"}}, "required": ["number"], "additionalProperties": False},
)
_SCHEMA: Final = {
    "type": "object",
    "properties": {"code": {"type": "integer", "enum": [4711]}},
    "required": ["code"],
    "additionalProperties": False,
}
"""Only a server that enforces it answers a greeting so."""
_GREETING: Final = "Hello."
_ORDER: Final = "Call the tool record_number with the number 7 now, and write nothing else."


@dataclass(frozen=True, slots=True)
class ShownCapabilities:
    """The capabilities that a server's model has shown in the trials."""

    tools: bool = False
    """It calls a tool where the prompt asks for it, with valid arguments."""
    forces_tools: bool = False
    """It calls a tool because `tool_choice` is "required"."""
    json_schema: JsonSchemaForm | None = None
    """The form in which it enforces a schema."""
    logprobs: bool = False
    logprobs_with_tools: bool = False


_shown: Final[dict[tuple[str, str], ShownCapabilities]] = {}
"""Results of the trials in this process, by address and model."""


async def open_near_server(config: NearServerConfig, *, name: str) -> "ServerAgent":
    """Open the near agent that `config` describes: choose its model and try it out, at most once per process.

    Raises `Unavailable` if no server is there, `NoSuchModel` that names the server's models, `ConfigError` for an address or a model that
    is not near, and what the server answers to the first step.
    """
    config = config.located()
    key = None if config.key_variable is None else StoredKey(config.key_variable)
    secret = None if key is None else await anyio.to_thread.run_sync(key.reveal, abandon_on_cancel=True)
    async with ModelServer.near(config, secret) as server:
        state = await server.look()
        model = choose_model(state, config.model, config)
        traits = await server.traits(state, model)
        trials = _Trials(config, model, key, traits)
        place = (config.base_url or "", model)
        if place not in _shown:
            shown = await trials.run()
            state = await server.look()  # it is still there, and has loaded the model: the length of its context is known now
            traits = await server.traits(state, model)
            _shown[place] = shown
    return trials.agent(name, _shown[place], state, traits)


class _Trials:
    """Short steps that show what a model does."""

    def __init__(self, config: NearServerConfig, model: str, key: Key | None, traits: ModelTraits) -> None:
        self._config = config
        self._model = model
        self._key = key
        self._takes_tools = traits.takes_tools
        self._effort = Effort.NONE if traits.thinks else None

    async def run(self) -> ShownCapabilities:
        """Try everything out. Raise what the first step raises if not even a plain text comes."""
        shown = ShownCapabilities(logprobs=await self._tell_logprobs())
        if self._takes_tools is not False:
            shown = await self._try_tools(shown)
        return replace(shown, json_schema=await self._find_schema_form())

    def agent(self, name: str, shown: ShownCapabilities, state: ServerState, traits: ModelTraits) -> "ServerAgent":
        """Return the agent with the capabilities that were shown."""
        limits = Limits(context_tokens=traits.context_tokens, concurrency=state.concurrency)
        check = self._refuse_cloud if state.program == "ollama" else None
        dialect = _dialect(shown, images=traits.reads_images)
        agent = self._provider_agent(dialect, name=name, limits=limits, retry=RetryPolicy(), check=check)
        is_elsewhere = self._config.is_elsewhere
        return ServerAgent(agent, forces_tools=shown.forces_tools, cuts_prompts=traits.cuts_prompts, is_elsewhere=is_elsewhere)

    async def _refuse_cloud(self, client: httpx.AsyncClient, key: str | None) -> None:
        await ModelServer.near(self._config, key, client=client).refuse_cloud(self._model)

    async def _tell_logprobs(self) -> bool:
        """Let the model say a few words; return whether log-probabilities come with them."""
        ask = partial(self._ask, _request(_GREETING, max_output_tokens=_FEW_TOKENS), seconds=_LOADING_SECONDS)
        try:
            return (await ask(OpenAIDialect(hosted=False, logprobs=True))).finished.confidence is not None
        except (DeadlineExceeded, Stalled):
            message = f"the {self._config.label} server did not answer a greeting within {_LOADING_SECONDS:g} s"
            raise DeadlineExceeded(message, hint="wait until it has loaded the model, or choose a smaller one") from None
        except AgentError:  # of any kind: servers refuse the parameter in various ways
            await ask(OpenAIDialect(hosted=False))
            return False

    async def _try_tools(self, shown: ShownCapabilities) -> ShownCapabilities:
        for logprobs in (True, False) if shown.logprobs else (False,):
            tried = replace(shown, logprobs_with_tools=logprobs)
            if await self._calls_tool(_GREETING, ToolChoice.REQUIRED, tried):
                return replace(tried, tools=True, forces_tools=True)
            if await self._calls_tool(_ORDER, ToolChoice.AUTO, tried):
                return replace(tried, tools=True)
        return shown

    async def _calls_tool(self, prompt: str, choice: ToolChoice, shown: ShownCapabilities) -> bool:
        request = _request(prompt, tools=(_TOOL,), tool_choice=choice)
        dialect = _dialect(replace(shown, tools=True), self._effort)
        return bool(reply.tool_calls) if (reply := await self._try(request, dialect)) is not None else False

    async def _find_schema_form(self) -> JsonSchemaForm | None:
        """Return the form of an output schema that the server enforces; None: it ignores or refuses both."""
        request = _request(_GREETING, output_schema=_SCHEMA)
        forms: tuple[JsonSchemaForm, ...] = ("native", "llama")
        for form in forms:
            reply = await self._try(request, _dialect(ShownCapabilities(json_schema=form), self._effort))
            if reply is not None and reply.text.strip():
                return form
        return None

    async def _try(self, request: StepRequest, dialect: OpenAIDialect) -> StepReply | None:
        """Return the reply to a trial; None if the server refuses it or does not keep to it."""
        try:
            return await self._ask(request, dialect, seconds=_TRIAL_SECONDS)
        except AgentError:  # of any kind: servers refuse a parameter in various ways, HTTP 500 among them
            return None

    async def _ask(self, request: StepRequest, dialect: OpenAIDialect, *, seconds: float) -> StepReply:
        agent = self._provider_agent(dialect, name="near", limits=Limits(), retry=RetryPolicy(calls=1))
        try:
            return await complete(agent, request.model_copy(update={"timeout": seconds}))
        finally:
            await agent.aclose()

    def _provider_agent(
        self, dialect: OpenAIDialect, *, name: str, limits: Limits, retry: RetryPolicy, check: PlaceCheck | None = None
    ) -> ProviderAgent:
        return ProviderAgent(
            dialect,
            self._model,
            key=self._key,
            base_url=self._config.base_url,
            name=name,
            limits=limits,
            prices=Prices.free(f"served by the user's own {self._config.label} server"),
            timeouts=Timeouts(),
            retry=retry,
            near=NearPlace(self._config.label, trusted=self._config.trusted, check=check),
        )


def _request(prompt: str, *, max_output_tokens: int = _TRIAL_TOKENS, **fields: object) -> StepRequest:
    return StepRequest.model_validate(
        {"messages": (Message.user(prompt),), "max_output_tokens": max_output_tokens, "temperature": 0.0, **fields}
    )


def _dialect(shown: ShownCapabilities, effort: Effort | None = None, *, images: bool = False) -> OpenAIDialect:
    return OpenAIDialect(
        hosted=False,
        tools=shown.tools,
        json_schema=shown.json_schema,
        logprobs=shown.logprobs,
        logprobs_with_tools=shown.logprobs_with_tools,
        images=images,
        effort=effort,
    )


class ServerAgent:
    """An `Agent` over a model that a near server runs. It makes good, or refuses, what the server ignores."""

    def __init__(self, agent: ProviderAgent, *, forces_tools: bool, cuts_prompts: bool, is_elsewhere: bool) -> None:
        """Serve by `agent`.

        Args:
            agent: asks the server.
            forces_tools: False if the server ignores `tool_choice`.
            cuts_prompts: True if the server cuts a long prompt without an error.
            is_elsewhere: True if the server may be on another machine.
        """
        self.is_elsewhere = is_elsewhere
        self._agent = agent
        self._forces_tools = forces_tools
        self._cuts_prompts = cuts_prompts

    @property
    def card(self) -> AgentCard:
        return self._agent.card

    async def step(self, request: StepRequest) -> AsyncGenerator[StepEvent, None]:
        """Run one step.

        Raises `Unsupported` if a tool has to be called and the server cannot be made to, `ContextOverflow` for a prompt that the server
        would cut, `ConfigError` if a cloud runs the model by now.
        """
        async with aclosing(self._agent.step(self._adapted(request))) as events:
            async for event in events:
                yield event

    async def aclose(self) -> None:
        """Close all connections; steps under way end with `StepLost`."""
        await self._agent.aclose()

    def _adapted(self, request: StepRequest) -> StepRequest:
        if self._cuts_prompts:
            self._check_length(request)
        if self._forces_tools or not (request.tools and self.card.capabilities.tools):
            return request
        if request.tool_choice is ToolChoice.REQUIRED:
            message = f"the server of agent {self.card.name!r} ignores tool_choice, so that no call can be required"
            raise Unsupported(message, hint="leave tool_choice at auto, or ask another agent")
        if request.tool_choice is ToolChoice.NONE:
            return request.model_copy(update={"tools": (), "tool_choice": ToolChoice.AUTO})
        return request

    def _check_length(self, request: StepRequest) -> None:
        window = self.card.limits.context_tokens
        unattached = request.model_copy(update={"messages": tuple(message.without_attachments for message in request.messages)})
        size = len(unattached.model_dump_json(include={"messages", "tools"}).encode()) // _BYTES_PER_TOKEN
        if window is not None and size > window:
            message = f"the prompt has about {size} tokens, and agent {self.card.name!r} has room for {window}"
            raise ContextOverflow(message, hint="shorten it, or start the server with a longer context (OLLAMA_CONTEXT_LENGTH)")
