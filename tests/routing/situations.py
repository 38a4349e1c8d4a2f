"""Tasks, agents and situations for the tests of the router."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal

from nearfar.orchestrator.task import Task
from nearfar.orchestrator.task.modes import Situation
from nearfar.orchestrator.task.policy import Policy
from nearfar.protocols import Capabilities, Message, Prices, Sensitivity, Side

NOON = datetime(2026, 11, 18, 12, 0)  # a Wednesday


@dataclass(frozen=True)
class Stand:
    """An agent as the router sees it."""

    name: str
    side: Side
    capabilities: Capabilities | None = None
    prices: Prices | None = None


def priced(dollars_per_million: float) -> Prices:
    """Reading and writing cost the same."""
    price = Decimal(str(dollars_per_million))
    return Prices(input=price, output=price, source="a test", as_of=NOON.date())


NEAR = Stand("near", Side.NEAR, prices=priced(0))
FAR = Stand("far", Side.FAR, prices=priced(10))


def situation(**changes: object) -> Situation:
    """A public task of a hundred tokens at noon, about which nothing else is known."""
    given: dict[str, object] = {"sensitivity": Sensitivity.PUBLIC, "tokens": 100, "now": NOON, **changes}
    return Situation(**given)  # type: ignore[arg-type]  # keywords of several types


def task(prompt: str = "What is the capital of Peru?", *, policy: Mapping[str, object] | None = None, **changes: object) -> Task:
    """A public task under the strategy `route`, with changes to both."""
    routed = Policy.model_validate({"strategy": "route", "sensitivity": "public", **(policy or {})})
    return Task.model_validate({"messages": (Message.user(prompt),), "policy": routed, **changes})
