"""Count the tokens of a conversation, with a given counter or an estimate."""

import json
import re
from collections.abc import Callable, Iterable

from ...protocols import Message

TokenCounter = Callable[[str], int]
"""Counts the tokens of a text as a model does."""

MESSAGE_TOKENS = 6
"""Tokens that a chat template puts around a message, a call or a result: the most among the templates we know."""

_TOKEN = re.compile(r"[A-Za-z]{1,4}|\n+|[^\sA-Za-z]")
_NOT_ASCII = re.compile(r"[^\x00-\x7f]")


def estimated_tokens(text: str) -> int:
    """Estimate the tokens of a text, on the high side: one for four letters of a word, for each digit and each mark, two beyond ASCII.

    Vocabularies of general models need about two thirds of that for English prose, and about as much for tables of numbers.
    """
    return len(_TOKEN.findall(text)) + (0 if text.isascii() else len(_NOT_ASCII.findall(text)))


def message_tokens(message: Message, count: TokenCounter = estimated_tokens) -> int:
    """Return the tokens of one message with its calls or its result."""
    tokens = MESSAGE_TOKENS + call_tokens(message, count) + count(message.text)
    if message.tool_result is not None:
        tokens += count(message.tool_result.content)
    return tokens


def call_tokens(message: Message, count: TokenCounter) -> int:
    """Return the tokens of the calls in a message."""
    arguments = (json.dumps(call.arguments, ensure_ascii=False) for call in message.tool_calls)
    return sum(MESSAGE_TOKENS + count(call.name) + count(given) for call, given in zip(message.tool_calls, arguments, strict=True))


def conversation_tokens(messages: Iterable[Message], count: TokenCounter = estimated_tokens) -> int:
    """Return the tokens of all messages."""
    return sum(message_tokens(message, count) for message in messages)
