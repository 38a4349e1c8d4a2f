"""Agents of all dialects behind a real LiteLLM proxy, with a scripted provider behind that.

LiteLLM takes apart what it gets and writes it anew in the provider's terms, and the provider's answer in ours: what it does not understand
of a request does not arrive, and what we do not understand of its streams is not answered.
"""

import json
from collections.abc import Iterator
from typing import Any

import anyio.to_thread
import pytest
from streams import DIALECTS, KEY, WEATHER, asking
from upstream import Upstream, upstream

from nearfar.cloud.failures import RetryPolicy
from nearfar.cloud.openai import OpenAIDialect
from nearfar.cloud.provider import ProviderAgent, Timeouts
from nearfar.protocols import (
    ContextOverflow,
    FinishReason,
    Message,
    NearfarError,
    NoSuchModel,
    ProviderAuthError,
    RateLimited,
    RequestRefused,
    StepReply,
    ToolResult,
    Unavailable,
    complete,
)
from nearfar.protocols.secrets import GivenKey
from scripts.judges import JudgeMissingError
from scripts.litellm_proxy import litellm_proxy

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(240)]  # LiteLLM takes ten seconds of a free core to start
SPOKEN = DIALECTS | {"openai": OpenAIDialect(hosted=False)}
PROVIDERS = {
    "chat": "openai/gpt-4o",
    "responses": "openai/responses/gpt-5.5",
    "messages": "anthropic/claude-sonnet-4-5",
    "contents": "gemini/gemini-2.5-flash",
}
"""The models behind the proxy, by the API that they are reached over there."""
ERRORS: dict[str, type[NearfarError]] = {
    "wrong!": RequestRefused,
    "overflow!": ContextOverflow,
    "gone!": NoSuchModel,
    "busy!": RateLimited,
    "locked!": ProviderAuthError,
    "down!": Unavailable,
}
THOUGHTS = {"responses": "gAAAAA0", "messages": "c2lnbmVk", "contents": "c2lnbmVk"}
"""What each provider wants back with a call; chat completions want nothing."""
CARRIED = {
    "responses": ("responses", "anthropic"),
    "messages": ("responses", "anthropic"),
    "contents": ("openai", "responses", "anthropic", "gemini"),
}
"""The dialects in which LiteLLM has a place for it."""


# LiteLLM names two calls of one tool alike when it turns Gemini's requests into those of others.
BOTH = [(dialect, model) for dialect in SPOKEN for model in PROVIDERS if dialect != "gemini" or model == "contents"]


@pytest.fixture(scope="module")
def provider() -> Iterator[Upstream]:
    with upstream() as running:
        yield running


@pytest.fixture(scope="module")
def proxy(provider: Upstream, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    config = {
        "model_list": [deployment(name, model, provider.base_url) for name, model in PROVIDERS.items()],
        "litellm_settings": {"num_retries": 0, "drop_params": True},
        "router_settings": {"num_retries": 0, "disable_cooldowns": True},
        "general_settings": {"master_key": KEY},
    }
    try:
        with litellm_proxy(config, tmp_path_factory.mktemp("proxy")) as address:
            yield address
    except JudgeMissingError as missing:
        pytest.skip(str(missing))


def deployment(name: str, model: str, base_url: str) -> dict[str, Any]:
    base = base_url.removesuffix("/v1") if name == "messages" else base_url  # to which LiteLLM adds /v1/messages itself
    return {"model_name": name, "litellm_params": {"model": model, "api_base": base, "api_key": "sk-upstream"}}


def agent_behind(proxy: str, dialect: str, model: str) -> ProviderAgent:
    address = f"{proxy}/{'v1beta' if dialect == 'gemini' else 'v1'}"
    timeouts, retry = Timeouts(idle=60.0), RetryPolicy(calls=1)
    return ProviderAgent(SPOKEN[dialect], model, key=GivenKey(KEY), base_url=address, timeouts=timeouts, retry=retry)


@pytest.mark.parametrize("model", PROVIDERS)
@pytest.mark.parametrize("dialect", SPOKEN)
async def test_text_and_usage_arrive(proxy: str, dialect: str, model: str) -> None:
    agent = agent_behind(proxy, dialect, model)
    reply = await complete(agent, asking())
    await agent.aclose()
    assert (reply.text, reply.finished.reason) == ("It is fine.", FinishReason.STOP)
    usage = reply.finished.usage
    if dialect == "gemini" and model != "contents":  # LiteLLM sends none there, so that it is estimated
        assert usage.input_tokens > 0
    else:
        assert (usage.input_tokens, usage.output_tokens, usage.cached_tokens) == (20, 5, 16)


@pytest.mark.parametrize("model", PROVIDERS)
@pytest.mark.parametrize("dialect", SPOKEN)
async def test_a_tools_result_reaches_the_provider_with_its_call_and_the_thoughts(
    proxy: str, provider: Upstream, dialect: str, model: str
) -> None:
    agent = agent_behind(proxy, dialect, model)
    asked = await complete(agent, asking("weather!", tools=(WEATHER,)))
    reply = await complete(agent, asking(messages=with_result(asked), tools=(WEATHER,)))
    await agent.aclose()
    assert [(call.name, call.arguments) for call in asked.tool_calls] == [("weather", {"city": "Paris"})]
    assert reply.text == "It is fine."
    seen = json.dumps(provider.bodies[-1])
    assert "Paris" in seen
    assert "sunny" in seen
    assert "[System:" not in seen  # which LiteLLM puts in the place of an empty text
    if dialect in CARRIED.get(model, ()):
        assert THOUGHTS[model] in seen


@pytest.mark.parametrize(("dialect", "model"), BOTH)
async def test_parallel_calls_come_in_order_and_each_gets_its_result(proxy: str, provider: Upstream, dialect: str, model: str) -> None:
    agent = agent_behind(proxy, dialect, model)
    asked = await complete(agent, asking("both!", tools=(WEATHER,)))
    await complete(agent, asking(messages=with_result(asked, "both!"), tools=(WEATHER,)))
    await agent.aclose()
    assert [call.arguments for call in asked.tool_calls] == [{"city": "Paris"}, {"city": "Oslo"}]
    assert len({call.id for call in asked.tool_calls}) == 2
    seen = json.dumps(provider.bodies[-1])
    assert 0 < seen.index("Paris") < seen.index("Oslo") < seen.index("sunny in Paris") < seen.index("sunny in Oslo")


def with_result(asked: StepReply, prompt: str = "weather!") -> tuple[Message, ...]:
    results = [ToolResult(call_id=call.id, name="weather", content=f"sunny in {call.arguments['city']}") for call in asked.tool_calls]
    return Message.user(prompt), asked.message, *map(Message.tool, results)


@pytest.mark.parametrize("dialect", SPOKEN)
async def test_an_overflow_of_the_context_is_told_in_every_dialect(proxy: str, dialect: str) -> None:
    agent = agent_behind(proxy, dialect, "contents")
    with pytest.raises(ContextOverflow):
        await complete(agent, asking("overflow!"))
    await agent.aclose()


@pytest.mark.parametrize("model", ["chat", "messages"])
@pytest.mark.parametrize("dialect", ["openai", "responses", "anthropic"])
@pytest.mark.parametrize("prompt", ERRORS)
async def test_what_the_provider_refuses_is_told_as_what_it_is(proxy: str, dialect: str, model: str, prompt: str) -> None:
    agent = agent_behind(proxy, dialect, model)
    with pytest.raises(ERRORS[prompt]) as caught:
        await complete(agent, asking(prompt))
    await agent.aclose()
    assert type(caught.value) is ERRORS[prompt]
    if prompt == "busy!" and dialect != "anthropic":  # there LiteLLM drops the provider's header
        assert caught.value.retry_after == 7.0


@pytest.mark.parametrize("dialect", SPOKEN)
async def test_a_model_that_the_proxy_does_not_serve_is_named(proxy: str, dialect: str) -> None:
    agent = agent_behind(proxy, dialect, "nothing-like-it")
    with pytest.raises((NoSuchModel, RequestRefused), match="nothing-like-it"):
        await complete(agent, asking())
    await agent.aclose()


@pytest.mark.parametrize("dialect", SPOKEN)
async def test_closing_a_step_ends_the_providers_work_behind_the_proxy(proxy: str, provider: Upstream, dialect: str) -> None:
    provider.left.clear()
    agent = agent_behind(proxy, dialect, "contents" if dialect == "gemini" else "chat")
    events = agent.step(asking("endless!"))
    await anext(events)
    await events.aclose()
    assert await anyio.to_thread.run_sync(provider.left.wait, 20)
    await agent.aclose()
