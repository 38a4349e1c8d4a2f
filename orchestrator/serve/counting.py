"""Counts the tokens of a request before it is served: rather too many than too few, since clients fill the context window by the count."""

import json
import math
import re
from typing import Final

from ...protocols import Message
from ..task.task import as_messages
from .dialect import Incoming
from .responses_input import ReadRequest

_PIECE: Final = re.compile(r"[A-Za-z]+|\s+|[\x21-\x7e]|[^\x00-\x7f]+")
_LETTERS: Final = 4
"""Letters of a token, at most: longer tokens are common words, and shorter ones make up for them."""
_BYTES: Final = 2
"""Bytes of a token outside of ASCII."""
_OF_MESSAGE: Final = 8
"""Tokens by which a template marks a message."""
_OF_TOOL: Final = 24
"""Tokens by which a template describes a tool, besides its schema."""


def tokens_at_most(text: str) -> int:
    """Return the tokens of a text by its letters, digits, signs and bytes: above what the tokenizers of large models make of prose, code
    and Chinese."""
    return sum(_piece_tokens(piece[0]) for piece in _PIECE.finditer(text))


def _piece_tokens(piece: str) -> int:
    if piece.isspace():
        return 0 if piece == " " else 1 + piece.count("\n")
    if piece.isascii():
        return math.ceil(len(piece) / _LETTERS)
    return math.ceil(len(piece.encode(errors="surrogatepass")) / _BYTES)


async def count_tokens(incoming: Incoming, read: ReadRequest) -> int:
    """Return the tokens of a request: messages, images, tools and template. Raises what reading the options of its turn raises."""
    incoming.options()
    tools = sum(_OF_TOOL + tokens_at_most(json.dumps(tool, ensure_ascii=False)) for tool in read.tools)
    return sum(map(_message_tokens, as_messages(read.messages))) + tools


def _message_tokens(message: Message) -> int:
    result = message.tool_result
    texts = [message.text, "" if result is None else f"{result.name}{result.content}"]
    texts += [f"{call.name}{json.dumps(call.arguments, ensure_ascii=False)}" for call in message.tool_calls]
    return _OF_MESSAGE + sum(map(tokens_at_most, texts)) + sum(each.most_tokens for each in message.attachments)
