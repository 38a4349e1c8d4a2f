"""A malicious agent far away that sees placeholders: what the answer tells that is displayed, and what calls of tools tell it."""

import asyncio
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from nearfar.orchestrator import Hybrid, Policy, tool
from nearfar.protocols import ScriptedAgent, Side, StepRequest, ToolCall
from nearfar.protocols.fakes import Reply

from .addresses import FILLED, spellings, with_placeholder

_PLACEHOLDER: Final = re.compile(r"<[A-Z_]+_[0-9]+_[a-z0-9]+>")
_SECRET: Final = "aaaa"
"""A label of a domain, and of a reference: it fits wherever a placeholder stands."""
_POLICY: Final = Policy.model_validate(
    {"sensitivity": "public", "strategy": "route", "mode": "prefer_in_cloud", "maximum_turns": 64, "privacy": {"placeholders": True}}
)


@tool(returns="device", effect="read")
def read_secret() -> str:
    """The secret."""
    return _SECRET


def figures(data: Path, *, quick: bool) -> dict[str, Any]:
    """`filled_addresses`: spellings of an address in which the value came out. `data` and `quick` are not needed."""
    del data, quick
    return asyncio.run(_figures())


async def _figures() -> dict[str, Any]:
    left = [(await _left(text), text.count("{p}")) for text in spellings()]
    left_where_read = [await _left(text) for text in FILLED]
    return {
        "filled_addresses": sum(count < all_of_them for count, all_of_them in left),
        "filled_where_read": left_where_read.count(0) / len(FILLED),
    }


async def _left(text: str) -> int:
    """Return how many placeholders of an answer are still there when it is displayed."""
    async with Hybrid(far=ScriptedAgent(_answering(text), name="far", side=Side.FAR), tools=[read_secret], policy=_POLICY) as hybrid:
        return len(_PLACEHOLDER.findall((await hybrid.run("What is the secret?")).text))


def _answering(text: str) -> Callable[[StepRequest], Reply]:
    def reply(request: StepRequest) -> Reply:
        names = _PLACEHOLDER.findall(request.messages[-1].model_dump_json())
        return with_placeholder(text, names[0]) if names else ToolCall(id="1", name="read_secret", arguments={})

    return reply
