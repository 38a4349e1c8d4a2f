"""The conversation that a request belongs to, named by the first of the keys that clients send."""

from collections.abc import Mapping
from typing import Any, Final

import orjson

from ..util.json_text import digest

_LONGEST: Final = 100
"""Characters of a name that is kept as it is; of a longer one, the hash is."""
_HEADERS: Final = ("x-nearfar-session", "session-id", "thread-id", "x-claude-code-session-id")
"""Headers that name a conversation: Nearfar's own, Codex', and Claude Code's."""


def session_of(headers: Mapping[str, str], body: Mapping[str, Any], *, chain: str = "", opening: object = None) -> str:
    """Return the name of a request's conversation.

    Args:
        headers: of the request.
        body: of the request.
        chain: name of the conversation of `previous_response_id`; empty: there is none.
        opening: system message and first message of the user, by whose hash a conversation is known that has no name.
    """
    named = _named(headers, body, chain)
    return f"opening-{digest(opening)[:32]}" if named is None else named if len(named) <= _LONGEST else f"name-{digest(named)[:32]}"


def _named(headers: Mapping[str, str], body: Mapping[str, Any], chain: str) -> str | None:
    keys = [*(headers.get(name) for name in _HEADERS), body.get("prompt_cache_key"), chain, _user_id(body.get("metadata"))]
    return next((key for key in keys if isinstance(key, str) and key), None)


def _user_id(metadata: object) -> object:
    """Return the conversation in Anthropic's `metadata.user_id`: Claude Code writes JSON into it, in which `session_id` names it."""
    user = metadata.get("user_id") if isinstance(metadata, Mapping) else None
    try:
        read = orjson.loads(user) if isinstance(user, str) else None
    except orjson.JSONDecodeError:
        return user
    return read.get("session_id", user) if isinstance(read, dict) else user
