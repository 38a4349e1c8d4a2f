"""Scripted agents and tools whose runs are recorded."""

from collections.abc import Sequence
from datetime import date
from decimal import Decimal
from typing import Any

from nearfar import Hybrid, tool
from nearfar.orchestrator.task.policy import Policy
from nearfar.protocols import Prices, ScriptedAgent, Sensitivity, Side, ToolCall

PUBLIC = Policy(sensitivity=Sensitivity.PUBLIC)
LOOKUP = ToolCall(id="1", name="lookup", arguments={"entity": "Orbix Labs"})
FREE = Prices(input=Decimal(0), output=Decimal(0), source="test", as_of=date(2026, 11, 20))
PAID = Prices(input=Decimal(2), output=Decimal(10), source="test", as_of=date(2026, 11, 20))


@tool(effect="read")
async def lookup(entity: str) -> str:
    """Look up who leads an entity."""
    return "Mira Falk"


@tool(effect="read", returns="device", source="external_tool")
async def read_mail(subject: str) -> str:
    """Read a mail."""
    return "the vault opens at nine, says Bearer abcdefgh1234"


def hybrid(near: Sequence[Any], far: Sequence[Any], **options: Any) -> Hybrid:  # noqa: ANN401 - passed on
    """Both sides as scripts."""
    near_agent = ScriptedAgent(near, name="near", prices=FREE, confidence=0.9)
    far_agent = ScriptedAgent(far, name="far", side=Side.FAR, prices=PAID)
    return Hybrid(near=near_agent, far=far_agent, tools=(lookup, read_mail), policy=PUBLIC, **options)
