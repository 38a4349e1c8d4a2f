"""Work of a provider that ends in an error costs what it may have cost, and never nothing."""

from contextlib import aclosing
from typing import Final

import anyio
import pytest
from http_server import Exchange, http_server, sse
from streams import (
    DIALECTS,
    KEY,
    TEXTS,
    WEATHER,
    agent_at,
    anthropic_call,
    anthropic_end,
    anthropic_events,
    anthropic_start,
    asking,
    openai_call,
    responses_call,
)

from nearfar import Hybrid, Policy, Records
from nearfar.cloud.failures import RetryPolicy
from nearfar.cloud.provider import ProviderAgent
from nearfar.orchestrator.budgets import BudgetBook, BudgetScope
from nearfar.orchestrator.budgets.storage import MemoryStorage
from nearfar.orchestrator.compose import GatewayConfig
from nearfar.orchestrator.strategies.calls import WORK_LOST
from nearfar.protocols import (
    BudgetExceeded,
    ContextOverflow,
    Limits,
    NearfarError,
    Prices,
    QuotaExceeded,
    RateLimited,
    RequestRefused,
    ScriptedAgent,
    StepLost,
    Unavailable,
    complete,
)
from nearfar.protocols.secrets import GivenKey
from nearfar.protocols.server import serve

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(60)]

COMPLAINTS: Final[dict[type[NearfarError], tuple[str, str]]] = {
    RateLimited: ("rate_limit_error", "slow down"),
    QuotaExceeded: ("invalid_request_error", "Your credit balance is too low"),
    RequestRefused: ("invalid_request_error", "messages.3: not like this"),
    ContextOverflow: ("invalid_request_error", "prompt is too long: 9 tokens > 8 maximum"),
    Unavailable: ("overloaded_error", "Overloaded"),
}
"""Type and message of a complaint, by the error that it is before any work was done."""
TAKEN = {"openai": 1, "responses": 2, "anthropic": 2}
"""Events which say that the request was taken; Gemini sends none."""
UNHEARD = {
    "openai": openai_call('{"ci', 'ty": "Pa', 'ris"}'),
    "responses": responses_call('{"ci', 'ty": "Pa', 'ris"}'),
    "anthropic": anthropic_call('{"ci', 'ty": "Paris"}'),
    "gemini": TEXTS["gemini"]("word"),
}
"""Answers that begin with thoughts or a call, of which nobody hears before they are whole."""
COUNTED = {
    "openai": sse({"model": "m", "choices": [], "usage": {"prompt_tokens": 20, "completion_tokens": 5}}),
    "anthropic": anthropic_events(anthropic_start(), anthropic_end("end_turn")[0]),
    "gemini": sse({"candidates": [], "usageMetadata": {"promptTokenCount": 20, "thoughtsTokenCount": 5}}),
}
"""Beginnings in which nothing is shown but a count of the tokens that the model wrote; the responses API counts at the end alone."""
PRICES = Prices.model_validate({"input": 3, "output": 15, "source": "made up", "as_of": "2026-11-01"})
MOST_DOLLARS = 1000 * 15e-6
"""The output of one call at its bound."""


def complaint(dialect: str, error: type[NearfarError]) -> str:
    """An event that breaks a stream off."""
    kind, message = COMPLAINTS[error]
    told = {"type": kind, "message": message}
    match dialect:
        case "responses":
            failed = {"id": "resp_1", "object": "response", "status": "failed", "error": {"code": kind, "message": message}, "output": []}
            return sse({"type": "response.failed", "sequence_number": 9, "response": failed})
        case "anthropic":
            return sse({"type": "error", "error": told}, event="error")
        case _:
            return sse({"error": told})


def beginning(body: str, events: int) -> str:
    return "".join(f"{event}\n\n" for event in body.split("\n\n")[:events])


async def outcome(dialect: str, body: str, *, calls: int = 1) -> NearfarError:
    """What the step ends with where the provider answers with this stream."""

    async def answer(exchange: Exchange) -> None:
        await exchange.stream([body])

    async with http_server(answer) as server:
        agent = agent_at(server.base_url, dialect, calls=calls)
        async with aclosing(agent):
            with pytest.raises(NearfarError) as raised:
                await complete(agent, asking(tools=(WEATHER,)))
        assert len(server.exchanges) <= calls
        return raised.value


@pytest.mark.parametrize("error", COMPLAINTS, ids=lambda error: error.__name__)
@pytest.mark.parametrize("dialect", DIALECTS)
async def test_a_complaint_before_any_event_is_a_refusal(dialect: str, error: type[NearfarError]) -> None:
    assert type(await outcome(dialect, complaint(dialect, error))) is error


@pytest.mark.parametrize("error", COMPLAINTS, ids=lambda error: error.__name__)
@pytest.mark.parametrize("dialect", TAKEN)
async def test_a_complaint_after_the_request_was_taken_is_a_refusal_but_for_the_providers_own_trouble(
    dialect: str, error: type[NearfarError]
) -> None:
    body = beginning(TEXTS[dialect]("word"), TAKEN[dialect]) + complaint(dialect, error)
    assert type(await outcome(dialect, body)) is (StepLost if error is Unavailable else error)


@pytest.mark.parametrize("error", COMPLAINTS, ids=lambda error: error.__name__)
@pytest.mark.parametrize("dialect", DIALECTS)
async def test_a_complaint_after_thoughts_or_a_piece_of_a_call_is_work_that_was_lost(dialect: str, error: type[NearfarError]) -> None:
    body = beginning(UNHEARD[dialect], TAKEN.get(dialect, 0) + 1) + complaint(dialect, error)
    lost = await outcome(dialect, body, calls=3)
    assert type(lost) is StepLost
    assert COMPLAINTS[error][1] in lost.message


@pytest.mark.parametrize("error", COMPLAINTS, ids=lambda error: error.__name__)
@pytest.mark.parametrize("dialect", COUNTED)
async def test_a_complaint_after_output_was_counted_is_work_that_was_lost(dialect: str, error: type[NearfarError]) -> None:
    assert type(await outcome(dialect, COUNTED[dialect] + complaint(dialect, error), calls=3)) is StepLost


@pytest.mark.parametrize("shown", ["text", "call"])
@pytest.mark.parametrize("dialect", DIALECTS)
async def test_whatever_breaks_a_begun_answer_off_and_whenever_is_lost_work(dialect: str, shown: str) -> None:
    events = (TEXTS[dialect]("wo", "rd") if shown == "text" else UNHEARD[dialect]).split("\n\n")
    is_taken_at_once = shown == "call" and dialect != "responses"  # its first event beyond the start of a message is a piece of the call
    first = TAKEN.get(dialect, 0) + (0 if is_taken_at_once and dialect in TAKEN else 1)
    last = next((place for place, event in enumerate(events) if '"finish_reason": "' in event), len(events) - 2)
    breaks = [*(complaint(dialect, error) for error in COMPLAINTS), "", "data: {torn\n\n", sse({"error": {"code": 599, "message": "?"}})]
    bodies = ["".join(f"{event}\n\n" for event in events[:number]) + end for number in range(first, last) for end in breaks]
    assert bodies
    unsaid = iter(bodies)

    async def answer(exchange: Exchange) -> None:
        await exchange.stream([next(unsaid)])

    async with http_server(answer) as server, aclosing(agent_at(server.base_url, dialect, calls=3)) as agent:
        for _ in bodies:
            with pytest.raises(WORK_LOST):
                await complete(agent, asking(tools=(WEATHER,)))
        assert len(server.exchanges) == len(bodies)  # none was asked again at once


@pytest.mark.parametrize("through_gateway", [False, True])
@pytest.mark.parametrize("dialect", DIALECTS)
async def test_a_dollar_limit_ends_the_repeating_of_work_that_is_lost(dialect: str, through_gateway: bool) -> None:
    async def answer(exchange: Exchange) -> None:
        await exchange.stream([beginning(UNHEARD[dialect], TAKEN.get(dialect, 0) + 1) + complaint(dialect, QuotaExceeded)])

    limits = {"day": {"dollars": 3 * MOST_DOLLARS}}
    policy = Policy.model_validate(
        {"sensitivity": "public", "strategy": "cloud", "limits": limits, "maximum_output_tokens": 1000, "fallback": {"triggers": []}}
    )
    async with http_server(answer) as server:
        book = BudgetBook(MemoryStorage())
        once = RetryPolicy(calls=1)
        for _ in range(6):
            far = ProviderAgent(DIALECTS[dialect], "model-1", key=GivenKey(KEY), base_url=server.base_url, prices=PRICES, retry=once)
            async with aclosing(far), serve(far) as gateway:
                asked = GatewayConfig(provider="gateway", address=gateway.address) if through_gateway else far
                async with Hybrid(far=asked, policy=policy, records=Records(budgets=book)) as hybrid:
                    with pytest.raises((StepLost, BudgetExceeded)):
                        await hybrid.run("hello", user="ana")
        spent = book.balance(BudgetScope("day")).spent.dollars or 0.0
        assert spent >= len(server.exchanges) * MOST_DOLLARS * 0.9 or spent >= 2.9 * MOST_DOLLARS
        assert 2 <= len(server.exchanges) <= 4


@pytest.mark.parametrize("dialect", TAKEN)
async def test_a_rate_limit_after_the_request_was_taken_is_waited_out(dialect: str) -> None:
    bodies = iter([beginning(TEXTS[dialect]("word"), TAKEN[dialect]) + complaint(dialect, RateLimited), TEXTS[dialect]("word")])

    async def answer(exchange: Exchange) -> None:
        await exchange.stream([next(bodies)])

    async with http_server(answer) as server, aclosing(agent_at(server.base_url, dialect, calls=2)) as agent:
        assert (await complete(agent, asking())).text == "word"


@pytest.mark.parametrize("error", [RateLimited, Unavailable], ids=lambda error: error.__name__)
@pytest.mark.parametrize("through_gateway", [False, True])
@pytest.mark.parametrize("dialect", DIALECTS)
async def test_work_that_ends_in_an_error_event_is_not_free(dialect: str, through_gateway: bool, error: type[NearfarError]) -> None:
    async def answer(exchange: Exchange) -> None:
        await exchange.stream([beginning(UNHEARD[dialect], TAKEN.get(dialect, 0) + 1) + complaint(dialect, error)])

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


@pytest.mark.parametrize("was_sent", [False, True])
async def test_a_step_that_ran_out_of_time_costs_nothing_if_its_request_had_not_left(was_sent: bool) -> None:
    silent = anyio.Event()

    async def answer(exchange: Exchange) -> None:
        silent.set()
        await anyio.sleep_forever()

    limits = {"day": {"dollars": 10}}
    policy = Policy.model_validate({"sensitivity": "public", "strategy": "cloud", "limits": limits, "attempt_timeout": 0.05})
    near, book = ScriptedAgent(["from here"], name="near"), BudgetBook(MemoryStorage())
    slots = Limits(concurrency=1)
    async with http_server(answer) as server, anyio.create_task_group() as tasks:
        far = ProviderAgent(DIALECTS["openai"], "model-1", key=GivenKey(KEY), base_url=server.base_url, prices=PRICES, limits=slots)
        async with aclosing(far), Hybrid(near=near, far=far, policy=policy, records=Records(budgets=book)) as hybrid:
            if not was_sent:  # another step holds the only connection
                tasks.start_soon(complete, far, asking())
                await silent.wait()
            result = await hybrid.run("hello")
            tasks.cancel_scope.cancel()
    assert (result.text, result.calls[0].error) == ("from here", "DeadlineExceeded")
    spent = book.balance(BudgetScope("day")).spent.dollars or 0.0
    assert (spent > 0, result.calls[0].dollars) == (was_sent, None if was_sent else 0)
