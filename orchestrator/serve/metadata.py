"""Facts about an answer: response headers, and the object `nearfar` in the body."""

from collections.abc import Sequence
from decimal import Decimal
from typing import Any, Final

from ..task.results import SideUsage
from ..task.turns import Speaker, Turn

SCHEMA: Final = 1
"""Version of the headers and of the object."""
_MOST_WARNINGS: Final = 30


def common_headers(run: str, strategy: str, warnings: Sequence[str]) -> dict[str, str]:
    """Return the headers of every response to a turn, whatever is known of it."""
    told = {"x-nearfar-warnings": ", ".join(dict.fromkeys(warnings[:_MOST_WARNINGS]))} if warnings else {}
    return {"x-nearfar-schema": str(SCHEMA), "x-nearfar-run": run, "x-nearfar-strategy": strategy, "x-request-id": run, **told}


def speaker_headers(speaker: Speaker) -> dict[str, str]:
    """Return the headers about the agent that answers."""
    told = {"side": speaker.side, "agent": speaker.agent, "model": speaker.model}
    return {f"x-nearfar-{name}": _as_header(str(value)) for name, value in told.items()}


def turn_headers(turn: Turn) -> dict[str, str]:
    """Return the headers about a turn that is over. What is not known is left out."""
    told: dict[str, object] = {"fallback": str(turn.result.was_fallback).lower(), "attempts": len(turn.result.attempts)}
    told |= {"confidence": _rounded(turn.confidence), "cost": _plain(turn.dollars)}
    told["saved"] = None if turn.saved is None else f"{_plain(turn.saved)};estimated"
    return {f"x-nearfar-{name}": str(value) for name, value in told.items() if value is not None}


def turn_object(turn: Turn, warnings: Sequence[str], *, debug: bool = False) -> dict[str, Any]:
    """Return the object `nearfar` of a turn. What is not known is null. `debug` adds all attempts, calls and reasons."""
    result = turn.result
    told: dict[str, Any] = {
        "schema": SCHEMA,
        "run": turn.id,
        "strategy": str(result.decision.strategy),
        "side": str(turn.side),
        "agent": turn.agent,
        "model": turn.model,
        "fallback": result.was_fallback,
        "attempts": len(result.attempts),
        "confidence": _rounded(turn.confidence),
        "cost": None if turn.dollars is None else float(turn.dollars),
        "saved_estimated": None if turn.saved is None else float(turn.saved),
        "tokens": {"near": _tokens(result.near), "far": _tokens(result.far)},
        "warnings": list(dict.fromkeys(warnings)),
    }
    return told | _details(turn) if debug else told


def _details(turn: Turn) -> dict[str, Any]:
    result = turn.result
    told = {"attempts": result.attempts, "calls": result.calls}
    details = {name: [each.model_dump(mode="json") for each in values] for name, values in told.items()}
    return {"debug": {**details, "reasons": list(result.reasons)}}


def _tokens(side: SideUsage) -> dict[str, int]:
    return {"input": side.usage.input_tokens, "output": side.usage.output_tokens}


def _rounded(share: float | None) -> float | None:
    return None if share is None else round(share, 4)


def _plain(dollars: Decimal | None) -> str | None:
    return None if dollars is None else f"{dollars:f}"


def _as_header(text: str) -> str:
    """Return a text as far as it fits into a header."""
    return "".join(letter if " " <= letter <= "~" else "?" for letter in text)
