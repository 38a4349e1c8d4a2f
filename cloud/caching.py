"""Cache marks for Anthropic's Messages API: with them, the next step of a tool loop reads its prefix at a tenth of the price of input.

A mark stores the prompt up to and including its block for 5 minutes; storing costs 1.25 times as much as plain input. The API orders a
prompt as tools, system, messages, takes 4 marks, looks at most 20 blocks back from a mark for an earlier one, and ignores a mark whose
prefix is too short (1,024 to 4,096 tokens, by the model).
"""

import json
from typing import Final

from pydantic import JsonValue

from .dialect import JsonObject

LEAST_BYTES: Final = 3 * 1024
"""A shorter prefix is not marked: it has hardly 1,024 tokens, the least that any model stores."""

_MARK: Final[JsonObject] = {"cache_control": {"type": "ephemeral"}}


def mark_prefixes(body: JsonObject) -> None:
    """Mark the parts that the next step sends again: tools with the system text, and the whole conversation.

    The end of the conversation before the last assistant turn is marked too. The previous step stored it, and a turn with many parallel
    calls may put it beyond the 20 blocks that the API looks back.
    """
    head = _size(body.get("tools")) + _size(body.get("system"))
    if head >= LEAST_BYTES:
        _mark_head(body)
    messages = body["messages"]
    assert isinstance(messages, list), "the dialect built it"
    if head + _size(messages) < LEAST_BYTES:
        return
    for turn in [turn for turn in messages if isinstance(turn, dict) and turn.get("role") == "user"][-2:]:
        _mark_last(turn.get("content"))


def _mark_head(body: JsonObject) -> None:
    """Mark the last block before the conversation."""
    if system := body.get("system"):
        body["system"] = [{"type": "text", "text": system, **_MARK}]
    else:
        _mark_last(body.get("tools"))


def _mark_last(blocks: JsonValue) -> None:
    if isinstance(blocks, list) and blocks and isinstance(last := blocks[-1], dict):
        blocks[-1] = last | _MARK


def _size(part: JsonValue) -> int:
    return 0 if part is None else len(json.dumps(part, ensure_ascii=False).encode(errors="surrogatepass"))
