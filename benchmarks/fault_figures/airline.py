"""Conversations with tau-bench's airline (arXiv 2406.12045), which the repository does not hold."""

import gzip
import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple

from pydantic import BaseModel

from nearfar.protocols import Message, ToolCall, ToolResult

from .puppet import Parameter, ToolKind


class _Flight(BaseModel):
    flight_number: str
    date: str


class _Passenger(BaseModel):
    first_name: str
    last_name: str
    dob: str


class _Payment(BaseModel):
    payment_id: str
    amount: float


_TYPES: Final[dict[str, Any]] = {
    "flight_type": Literal["one_way", "round_trip"],
    "cabin": Literal["basic_economy", "economy", "business"],
    "insurance": Literal["yes", "no"],
    "flights": list[_Flight],
    "passengers": list[_Passenger],
    "payment_methods": list[_Payment],
    "total_baggages": int,
    "nonfree_baggages": int,
    "amount": float,
}
"""Of the arguments that are no plain texts, as the airline declares them."""
_ARGUMENTS: Final = {
    "book_reservation": "user_id origin destination flight_type cabin flights passengers payment_methods total_baggages nonfree_baggages "
    "insurance",
    "calculate": "expression",
    "cancel_reservation": "reservation_id",
    "get_reservation_details": "reservation_id",
    "get_user_details": "user_id",
    "list_all_airports": "",
    "search_direct_flight": "origin destination date",
    "search_onestop_flight": "origin destination date",
    "send_certificate": "user_id amount",
    "think": "thought",
    "transfer_to_human_agents": "summary",
    "update_reservation_baggages": "reservation_id total_baggages nonfree_baggages payment_id",
    "update_reservation_flights": "reservation_id cabin flights payment_id",
    "update_reservation_passengers": "reservation_id passengers",
}
TOOLS: Final = tuple(
    ToolKind(name, name.split("_")[0], tuple(Parameter(argument, _TYPES.get(argument, str)) for argument in arguments.split()))
    for name, arguments in _ARGUMENTS.items()
)
"""All of them, whatever a conversation calls."""


_USER: Final = re.compile(r'"user_id": "(\w+)"')


class Turn(NamedTuple):
    """What the user said, and what was done thereupon."""

    said: Message
    work: list[Message]


@dataclass(frozen=True)
class Conversation:
    """One of them."""

    rules: list[Message]
    turns: list[Turn]

    @cached_property
    def calls(self) -> list[ToolCall]:
        return [call for turn in self.turns for message in turn.work for call in message.tool_calls]

    @cached_property
    def customers(self) -> frozenset[str]:
        """Whom it is about, by what was looked up and found."""
        results = (message.tool_result.content for turn in self.turns for message in turn.work if message.tool_result is not None)
        found = {user for result in results for user in _USER.findall(result)}
        return frozenset({*found, *(str(call.arguments["user_id"]) for call in self.calls if "user_id" in call.arguments)})

    @property
    def is_changing(self) -> bool:
        return any(is_changing(call.name) for call in self.calls)


def is_changing(name: str) -> bool:
    """Whether a tool books, changes or cancels anything, or sends money's worth. To hand over to a human is free to anybody."""
    return name.startswith(("book_", "update_", "cancel_", "send_"))


def conversations(folder: Path) -> list[Conversation]:
    """All of them, in the order of the file."""
    lines = gzip.decompress((folder / "tau_airline_gpt4o.jsonl.gz").read_bytes()).decode().splitlines()
    return [_conversation(json.loads(line)["traj"]) for line in lines]


def other_than(talk: Conversation, talks: Sequence[Conversation]) -> Conversation:
    """The next conversation in which something is changed for other customers."""
    behind = talks.index(talk) + 1
    following = (*talks[behind:], *talks[:behind])
    return next(other for other in following if other.is_changing and not other.customers & talk.customers)


def _conversation(rows: list[dict[str, Any]]) -> Conversation:
    rules: list[Message] = []
    turns: list[Turn] = []
    for row in rows:
        if row["role"] == "system":
            rules.append(Message.system(row["content"]))
        elif row["role"] == "user":
            turns.append(Turn(Message.user(row["content"]), []))
        else:
            turns[-1].work.append(_message(row))
    return Conversation(rules, [turn for turn in turns if turn.work])


def _message(row: dict[str, Any]) -> Message:
    if row["role"] == "tool":
        return Message.tool(ToolResult(call_id=row["tool_call_id"], name=row["name"], content=row["content"]))
    return Message.assistant(row["content"] or "", tuple(_calls(row)))


def _calls(row: dict[str, Any]) -> Iterator[ToolCall]:
    for call in row.get("tool_calls") or ():
        yield ToolCall(id=call["id"], name=call["function"]["name"], arguments=json.loads(call["function"]["arguments"]))
