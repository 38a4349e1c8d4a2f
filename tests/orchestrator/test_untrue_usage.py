"""An agent of the app's own, in this process, reports what cannot be, or nothing."""

from collections.abc import AsyncIterator
from datetime import date
from decimal import Decimal
from typing import Any

import pytest

from nearfar import Hybrid, Policy
from nearfar.protocols import (
    BudgetExceeded,
    Finished,
    InvalidOutput,
    Performance,
    Prices,
    ScriptedAgent,
    Side,
    StepEvent,
    StepRequest,
    Usage,
)

pytestmark = pytest.mark.anyio
PRICES = Prices(input=Decimal(1), output=Decimal(1), source="a test", as_of=date(2026, 11, 18))
FREE = PRICES.model_copy(update={"input": Decimal(0), "output": Decimal(0)})
CLOUD: dict[str, Any] = {"strategy": "cloud", "sensitivity": "public", "maximum_output_tokens": 100}


class Reporting:
    """Answers, and ends with fields as given."""

    def __init__(self, *, prices: Prices = PRICES, **fields: object) -> None:
        self._inner = ScriptedAgent(lambda _: "Here it is.", name="far", side=Side.FAR, prices=prices)
        self._fields = fields
        self.card = self._inner.card

    async def step(self, request: StepRequest) -> AsyncIterator[StepEvent]:
        async for event in self._inner.step(request):
            yield event.model_copy(update=self._fields) if isinstance(event, Finished) else event

    async def aclose(self) -> None:
        await self._inner.aclose()


@pytest.mark.parametrize(
    "fields",
    [
        {"usage": Usage(input_tokens=10**30)},
        {"usage": Usage(output_tokens=10**400)},
        {"usage": Usage.model_construct(input_tokens=-5, output_tokens=1)},
        {"usage": Usage.model_construct(input_tokens=None, output_tokens=1)},
        {"usage": Usage.model_construct(input_tokens="many", output_tokens=1)},
        {"usage": "some"},
        {"usage": None},
        {"saved": Usage(output_tokens=10**30)},
        {"performance": Performance.model_construct(joules=float("nan"))},
        {"confidence": 7},
    ],
)
async def test_figures_that_cannot_be_are_an_error_of_the_tree_and_nothing_else(fields: dict[str, Any]) -> None:
    async with Hybrid(far=Reporting(**fields), policy=Policy.model_validate(CLOUD)) as hybrid:
        with pytest.raises(InvalidOutput, match="figures that cannot be"):
            await hybrid.run("Where is it?")


async def test_an_answer_that_took_no_tokens_counts_as_the_most_that_it_could_take() -> None:
    policy = Policy.model_validate({**CLOUD, "limits": {"day": {"tokens": 60}}})
    async with Hybrid(far=Reporting(usage=Usage()), policy=policy) as hybrid:
        result = await hybrid.run("Where is it?")
        assert (result.far.dollars, result.far.usage.total_tokens) == (None, 0)
        with pytest.raises(BudgetExceeded):
            await hybrid.run("And where is it now?")


async def test_an_agent_that_costs_nothing_costs_nothing_where_it_reports_nothing() -> None:
    agent = Reporting(prices=FREE, usage=Usage())
    async with Hybrid(far=agent, policy=Policy.model_validate(CLOUD)) as hybrid:
        assert (await hybrid.run("Where is it?")).far.dollars == 0
