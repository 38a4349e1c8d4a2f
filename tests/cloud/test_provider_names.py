"""The names that telemetry gives providers, and what it learns of a step over a gateway."""

from contextlib import aclosing
from urllib.parse import urlsplit

import pytest
from http_server import Exchange, http_server
from streams import agent_at, asking, openai_text

from nearfar import Hybrid, Policy, instrument
from nearfar.cloud.dialect import provider_name
from nearfar.cloud.gateway import serve_gateway
from nearfar.protocols import Sensitivity, complete
from nearfar.protocols.client import RemoteAgent

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize(
    ("dialect", "address", "name"),
    [
        ("openai", "https://api.openai.com/v1", "openai"),
        ("responses", "https://api.openai.com/v1", "openai"),
        ("anthropic", "https://api.anthropic.com/v1", "anthropic"),
        ("gemini", "https://generativelanguage.googleapis.com/v1beta", "gcp.gemini"),
        ("openai", "https://api.groq.com/openai/v1", "groq"),
        ("openai", "https://mine.openai.azure.com/openai/v1", "azure.ai.openai"),
        ("openai", "http://localhost:11434/v1", "openai"),
    ],
)
def test_a_provider_has_the_name_of_its_host_or_its_api(dialect: str, address: str, name: str) -> None:
    assert provider_name(dialect, address) == name


async def test_the_card_names_the_provider_also_behind_a_gateway() -> None:
    async def answer(exchange: Exchange) -> None:
        await exchange.respond(200, openai_text("ok"), content_type="text/event-stream")

    async with http_server(answer) as api, aclosing(agent_at(api.base_url)) as agent:
        assert agent.card.provider == "openai"
        assert agent.server == ("127.0.0.1", urlsplit(api.base_url).port)
        async with serve_gateway({"far": agent}) as server:
            remote = await RemoteAgent.connect(server.address)
            assert remote.card.provider == "openai"
            assert (await complete(remote, asking())).text == "ok"
            await remote.aclose()


async def test_a_span_tells_provider_server_and_the_model_that_really_answered() -> None:
    pytest.importorskip("opentelemetry.sdk", reason="spans need the SDK")
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    async def answer(exchange: Exchange) -> None:
        await exchange.respond(200, openai_text("ok"), content_type="text/event-stream")

    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    async with (
        http_server(answer) as api,
        aclosing(agent_at(api.base_url)) as agent,
        Hybrid(far=agent, policy=Policy(sensitivity=Sensitivity.PUBLIC)) as hybrid,
    ):
        instrument(hybrid, tracer_provider=provider)
        await hybrid.run("Hi", strategy="cloud")
    attributes = {span.name: span.attributes for span in exporter.get_finished_spans()}["chat model-1"]
    assert attributes is not None
    assert (
        attributes.items()
        >= {
            "gen_ai.provider.name": "openai",
            "gen_ai.response.model": "model-1-0613",
            "gen_ai.usage.input_tokens": 20,
            "gen_ai.usage.cache_read.input_tokens": 16,
            "server.address": "127.0.0.1",
        }.items()
    )
