"""Count the tokens of a request before it is served: exactly where the near agent that would serve it can, else rather too many than too
few, since clients fill the context window by the count."""

import json
import logging
from typing import Final

from ...protocols import Message, NearfarError
from ..hybrid.hybrid import Hybrid
from ..task.task import as_messages
from ..util.tokens import tokens_at_most
from .dialect import AskedOfTurn
from .endpoint import Exchange
from .metadata import SCHEMA

logger = logging.getLogger(__name__)

_OF_MESSAGE: Final = 8
"""Tokens by which a template marks a message."""
_OF_TOOL: Final = 24
"""Tokens by which a template describes a tool, besides its schema."""


async def answer_count(exchange: Exchange, asked: AskedOfTurn, **body: str) -> None:
    """Answer with `body` and the tokens of a request: messages, images, tools and template; and whether they are exact."""
    exact = await exchange.while_connected(_exact_tokens(exchange.face.hybrid, asked))
    tokens, count = (_estimated_tokens(asked), "estimated") if exact is None else (exact, "exact")
    told = {**body, "input_tokens": tokens, "nearfar": {"schema": SCHEMA, "count": count}}
    await exchange.reply(told, headers={"x-nearfar-count": count})


async def _exact_tokens(hybrid: Hybrid, asked: AskedOfTurn) -> int | None:
    """Return the tokens that the near agent would count; None where it would not begin the turn, or cannot count."""
    try:
        return await hybrid.count_turn_tokens(asked.prompt, tools=asked.tools, tool_choice=asked.tool_choice, **asked.options)
    except NearfarError as error:  # clients count also what no agent here would serve
        logger.debug("tokens are estimated, since they cannot be counted: %s", error)
        return None


def _estimated_tokens(asked: AskedOfTurn) -> int:
    tools = sum(_OF_TOOL + tokens_at_most(_as_text(tool)) for tool in asked.tools)
    return sum(map(_message_tokens, as_messages(asked.prompt))) + tools


def _as_text(tool: object) -> str:
    return json.dumps(tool, ensure_ascii=False, default=str)


def _message_tokens(message: Message) -> int:
    result = message.tool_result
    texts = [message.text, "" if result is None else f"{result.name}{result.content}"]
    texts += [f"{call.name}{json.dumps(call.arguments, ensure_ascii=False)}" for call in message.tool_calls]
    return _OF_MESSAGE + sum(map(tokens_at_most, texts)) + sum(each.most_tokens for each in message.attachments)
