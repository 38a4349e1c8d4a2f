"""`/v1/responses`: OpenAI's Responses API, with responses that are kept, continued, read again and deleted."""

from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import parse_qsl

from ...protocols import InvalidRequest, Sensitivity
from ..runs.responses import Chain, KeptResponse, KeptResponses
from ..task.turns import Turn
from .counting import answer_count
from .dialect import AskedOfTurn, Encoder, Incoming, TurnDialect
from .endpoint import Exchange
from .errors import openai_error
from .fields import Fields, opening_of, required_text, wrong
from .requests import field
from .responses_input import input_items, read_responses
from .responses_output import ResponseEncoder, ResponseWriter, whole_response

_MOST_ITEMS = 100
"""Items of a response's input that one request lists at most."""
_PAGE = 20
"""Items that one lists unless it says."""


class Responses(TurnDialect):
    """Reads requests for responses, and writes the responses."""

    error_body = staticmethod(openai_error)

    def __init__(self, kept: KeptResponses) -> None:
        """Continue responses that are `kept`, and keep those that are made."""
        self._kept = kept

    async def read(self, incoming: Incoming) -> AskedOfTurn:
        chain = await self._chain(incoming)
        given, holders = await self._input(incoming)
        read = read_responses(incoming.body, given, earlier=chain.items)
        options, asked, warnings = incoming.options(chain=chain.session, opening=opening_of(read.messages))
        options |= dict(read.options)  # type: ignore[typeddict-item]  # they are checked when the turn begins
        if chain.is_private or any(holder.is_private for holder in holders):
            options["sensitivity"] = Sensitivity.PRIVATE
        return AskedOfTurn(
            prompt=read.messages,
            options=options,
            tools=read.tools,
            tool_choice=read.tool_choice,
            stream=read.stream,
            debug=asked.debug,
            warnings=[*dict.fromkeys([*read.warnings, *warnings])],
            extra={"input": given, "store": field(incoming.body, "store", bool, "true or false", True)},
        )

    async def _chain(self, incoming: Incoming) -> Chain:
        """Return the responses that a request continues."""
        return await self._kept.chain(field(incoming.body, "previous_response_id", str, "the id of a response", ""), _owner(incoming))

    async def _input(self, incoming: Incoming) -> tuple[Sequence[Fields], Sequence[KeptResponse]]:
        """Return the items of a request's input, references replaced by the items that they name, and the responses that hold these."""
        items, holders = list(input_items(incoming.body)), []
        for place, item in enumerate(items):
            if item.get("type") == "item_reference":
                name = required_text(item, "id", f"input[{place}]")
                items[place], holder = await self._kept.item(name, _owner(incoming))
                holders.append(holder)
        return items, holders

    def whole(self, incoming: Incoming, asked: AskedOfTurn, turn: Turn) -> Mapping[str, Any]:
        return whole_response(_writer(incoming), asked, turn)

    def encoder(self, incoming: Incoming, asked: AskedOfTurn) -> Encoder:
        return ResponseEncoder(_writer(incoming), asked)

    async def keep(self, incoming: Incoming, asked: AskedOfTurn, turn: Turn, written: Encoder | Mapping[str, Any]) -> None:
        """Keep a complete response, unless the request says `"store": false`."""
        if not asked.extra["store"]:
            return
        response = written.response if isinstance(written, ResponseEncoder) else dict(written)  # type: ignore[arg-type]  # whole returns one
        items = tuple({**item} for item in asked.extra["input"])
        declared = asked.options.get("sensitivity", incoming.hybrid.policy.sensitivity)
        is_private = Sensitivity.PRIVATE in (declared, turn.result.label.sensitivity)
        session = asked.options["session"]
        kept = KeptResponse(run=incoming.run, session=session, input=items, response=response, is_private=is_private)
        await self._kept.keep(kept, _owner(incoming))

    async def count(self, exchange: Exchange) -> None:
        """Answer with the number of tokens of a request's input."""
        await answer_count(exchange, await self.read(exchange.incoming), object="response.input_tokens")

    async def show(self, exchange: Exchange) -> None:
        """Answer with a kept response, or delete it."""
        name, user = exchange.scope["path_params"]["response"], _owner(exchange.incoming)
        if exchange.scope["method"] == "DELETE":
            await self._kept.delete(name, user)
            await exchange.reply({"id": name, "object": "response", "deleted": True})
        else:
            await exchange.reply((await self._kept.get(name, user)).response)

    async def cancel(self, exchange: Exchange) -> None:
        """Refuse to cancel: a response is kept when it is complete, and closing the connection cancels one that is not."""
        await self._kept.get(exchange.scope["path_params"]["response"], _owner(exchange.incoming))
        raise InvalidRequest("only a background response can be cancelled, and this one is complete", hint="close the connection instead")

    async def items(self, exchange: Exchange) -> None:
        """Answer with a page of the items of a kept response's input, the newest first unless `order=asc`."""
        kept = await self._kept.get(exchange.scope["path_params"]["response"], _owner(exchange.incoming))
        query = dict(parse_qsl(exchange.scope.get("query_string", b"").decode()))
        listed: list[dict[str, Any]] = [{**item, "id": item.get("id") or f"item_{place}"} for place, item in enumerate(kept.input)]
        if query.get("order") != "asc":
            listed.reverse()
        ids = [item["id"] for item in listed]
        rest = listed[ids.index(query["after"]) + 1 :] if query.get("after") in ids else listed
        page = rest[: _page_size(query.get("limit", ""))]
        ends = {"first_id": page[0]["id"] if page else None, "last_id": page[-1]["id"] if page else None}
        await exchange.reply({"object": "list", "data": page, "has_more": len(rest) > len(page), **ends})


def _owner(incoming: Incoming) -> str:
    """Return the user whose responses a caller may see."""
    return incoming.allowed.user or incoming.caller


def _writer(incoming: Incoming) -> ResponseWriter:
    return ResponseWriter(f"resp_{incoming.run}", incoming.body)


def _page_size(limit: str) -> int:
    if not limit:
        return _PAGE
    if not limit.isdecimal() or len(limit) > len(str(_MOST_ITEMS)) or not 0 < int(limit) <= _MOST_ITEMS:
        raise wrong("limit", f"it must be a number from 1 to {_MOST_ITEMS}")
    return int(limit)
