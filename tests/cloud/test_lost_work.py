"""Work of a provider that ends in an error costs what it may have cost, and never nothing."""

from contextlib import aclosing

import pytest
from http_server import Exchange, http_server, sse
from streams import DIALECTS, KEY, anthropic_text, gemini_text, openai_text, responses_text

from nearfar.cloud.keys import GivenKey
from nearfar.cloud.provider import ProviderAgent
from nearfar.cloud.retry import RetryPolicy
from nearfar.orchestrator import Hybrid, Policy
from nearfar.orchestrator.compose import GatewayConfig
from nearfar.protocols import Prices, ScriptedAgent
from nearfar.protocols.server import serve

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(60)]

TEXTS = {"openai": openai_text, "responses": responses_text, "anthropic": anthropic_text, "gemini": gemini_text}
FAULTS: dict[str, dict[str, object]] = {
    "openai": {"error": {"message": "upstream died", "code": 502}},
    "responses": {"type": "error", "code": "server_error", "message": "sorry", "param": None, "sequence_number": 9},
    "anthropic": {"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}},
    "gemini": {"error": {"code": 503, "status": "UNAVAILABLE", "message": "overloaded"}},
}
PRICES = Prices.model_validate({"input": 3, "output": 15, "source": "made up", "as_of": "2026-11-01"})


def unheard(dialect: str) -> str:
    """A stream that breaks with an error before its first word, although the provider is at work."""
    whole = TEXTS[dialect]("word")
    return whole[: whole.index("word")].rpartition("\n\n")[0] + "\n\n" + sse(FAULTS[dialect])


@pytest.mark.parametrize("through_gateway", [False, True])
@pytest.mark.parametrize("dialect", DIALECTS)
async def test_work_that_ends_in_an_error_event_is_not_free(dialect: str, through_gateway: bool) -> None:
    async def answer(exchange: Exchange) -> None:
        await exchange.stream([unheard(dialect)])

    async with http_server(answer) as server:
        once = RetryPolicy(calls=1)
        far = ProviderAgent(DIALECTS[dialect], "model-1", key=GivenKey(KEY), base_url=server.base_url, prices=PRICES, retry=once)
        policy = Policy.model_validate({"sensitivity": "public", "strategy": "cloud", "limits": {"day": {"dollars": 1}}})
        async with aclosing(far), serve(far) as gateway:
            asked = GatewayConfig(provider="gateway", address=gateway.address) if through_gateway else far
            async with Hybrid(near=ScriptedAgent(["from here"], name="near"), far=asked, policy=policy) as hybrid:
                result = await hybrid.run("hello", user="ana")
    assert result.text == "from here"
    assert result.calls[0].error == "StepLost"
    assert result.calls[0].dollars is None
    assert result.far.dollars is None
