"""The state of the apps, contacts, calendar, mail, notes and payments, and the sixteen functions that act on it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Final

from pydantic import JsonValue

from ...task.tools import Effect, Tool, tool

DAYS: Final = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
FIRST_HOUR: Final = 8
LAST_HOUR: Final = 20

Item = tuple[str, ...]
"""One thing that is the case, such as `("event", "Spring Review", "Monday", "14")`."""


@dataclass(frozen=True, slots=True)
class Event:
    """An entry of the calendar; `hour` is a full hour of the day."""

    title: str
    day: str
    hour: int


@dataclass(frozen=True, slots=True)
class Mail:
    """A mail that came in."""

    sender: str
    subject: str
    text: str


@dataclass
class AppState:
    """The state of all apps. Numbers in ids are unique within their kind."""

    contacts: dict[str, str] = field(default_factory=dict)
    """Phone number by name."""
    events: dict[str, Event] = field(default_factory=dict)
    mails: dict[str, Mail] = field(default_factory=dict)
    notes: dict[str, str] = field(default_factory=dict)
    """Text by title."""
    sent: list[tuple[str, str]] = field(default_factory=list)
    """Mails that went out: recipient and text."""
    paid: list[tuple[str, int]] = field(default_factory=list)
    requested: list[tuple[str, int]] = field(default_factory=list)

    def copy(self) -> AppState:
        return deepcopy(self)

    def items(self) -> list[Item]:
        """List all facts of the state, without ids, in order; equal states have equal lists."""
        items: list[Item] = [("contact", name, phone) for name, phone in self.contacts.items()]
        items += [("event", event.title, event.day, str(event.hour)) for event in self.events.values()]
        items += [("mail", mail.sender, mail.subject, mail.text) for mail in self.mails.values()]
        items += [("note", title, text) for title, text in self.notes.items()]
        items += [("sent", *mail) for mail in self.sent]
        items += [("paid", person, str(amount)) for person, amount in self.paid]
        items += [("requested", person, str(amount)) for person, amount in self.requested]
        return sorted(items)


class Apps:
    """The functions, as methods that raise `LookupError` or `ValueError` where they cannot do what is asked."""

    def __init__(self, state: AppState) -> None:
        self.state = state

    async def find_contact(self, name: str) -> str:
        """The phone number of a contact."""
        return self._contact(name)

    async def add_contact(self, name: str, phone: str) -> str:
        """Save a contact, or give an existing one another number."""
        self.state.contacts[name] = phone
        return "saved"

    async def delete_contact(self, name: str) -> str:
        """Delete a contact. This cannot be undone."""
        self._contact(name)
        del self.state.contacts[name]
        return "deleted"

    async def find_event(self, title: str) -> str:
        """The id, day and hour of an event in the calendar."""
        for identifier, event in self.state.events.items():
            if event.title == title:
                return f"{identifier} {event.day} {event.hour}"
        raise LookupError(f"no event is called {title}")

    async def add_event(self, title: str, day: str, hour: int) -> str:
        """Put an event into the calendar; the hour is a full one from 8 to 20."""
        _check_time(day, hour)
        number = max((int(identifier[1:]) for identifier in self.state.events), default=0) + 1
        self.state.events[f"e{number}"] = Event(title, day, hour)
        return "added"

    async def move_event(self, event: str, day: str, hour: int) -> str:
        """Move an event, named by its id, to another day and hour."""
        _check_time(day, hour)
        self.state.events[event] = Event(self._event(event).title, day, hour)
        return "moved"

    async def cancel_event(self, event: str) -> str:
        """Cancel an event, named by its id, and tell those invited. This cannot be undone."""
        self._event(event)
        del self.state.events[event]
        return "cancelled"

    async def find_mails(self, sender: str) -> str:
        """Ids and subjects of the mails from a person."""
        found = [f"{identifier} {mail.subject}" for identifier, mail in self.state.mails.items() if mail.sender == sender]
        if not found:
            raise LookupError(f"no mail is from {sender}")
        return "; ".join(found)

    async def read_mail(self, mail: str) -> str:
        """The text of a mail, named by its id."""
        if mail not in self.state.mails:
            raise LookupError(f"no mail has the id {mail}")
        return self.state.mails[mail].text

    async def send_mail(self, to: str, text: str) -> str:
        """Send a mail. This cannot be undone."""
        self._contact(to)
        self.state.sent.append((to, text))
        return "sent"

    async def delete_mail(self, mail: str) -> str:
        """Delete a mail, named by its id. This cannot be undone."""
        if mail not in self.state.mails:
            raise LookupError(f"no mail has the id {mail}")
        del self.state.mails[mail]
        return "deleted"

    async def find_note(self, title: str) -> str:
        """The text of a note."""
        return self._note(title)

    async def add_note(self, title: str, text: str) -> str:
        """Write a note."""
        self.state.notes[title] = text
        return "saved"

    async def delete_note(self, title: str) -> str:
        """Delete a note. This cannot be undone."""
        self._note(title)
        del self.state.notes[title]
        return "deleted"

    async def pay(self, person: str, amount: int) -> str:
        """Pay a person an amount. This cannot be undone."""
        self._contact(person)
        self.state.paid.append((person, _positive(amount)))
        return "paid"

    async def request_payment(self, person: str, amount: int) -> str:
        """Ask a person for an amount. This cannot be undone."""
        self._contact(person)
        self.state.requested.append((person, _positive(amount)))
        return "requested"

    def _contact(self, name: str) -> str:
        if name not in self.state.contacts:
            raise LookupError(f"no contact is called {name}")
        return self.state.contacts[name]

    def _event(self, identifier: str) -> Event:
        if identifier not in self.state.events:
            raise LookupError(f"no event has the id {identifier}")
        return self.state.events[identifier]

    def _note(self, title: str) -> str:
        if title not in self.state.notes:
            raise LookupError(f"no note is called {title}")
        return self.state.notes[title]


FUNCTIONS: Sequence[str] = tuple(name for name in vars(Apps) if not name.startswith("_"))

IRREVERSIBLE = frozenset({"delete_contact", "cancel_event", "send_mail", "delete_mail", "delete_note", "pay", "request_payment"})
"""Functions whose effect cannot be taken back by calling another one."""


def app_tools(state: AppState) -> tuple[Tool, ...]:
    """The functions as tools that act on `state`."""
    apps = Apps(state)
    return tuple(tool(effect=_effect(name), source="internal_tool")(getattr(apps, name)) for name in FUNCTIONS)


def _effect(name: str) -> Effect:
    return Effect.READ if name.startswith(("find_", "read_")) else Effect.AT_MOST_ONCE


def run_now(state: AppState, name: str, arguments: Mapping[str, JsonValue]) -> tuple[str, bool]:
    """Call a function without an event loop; returns its text and whether it failed, as a tool would report them."""
    function: Callable[..., object] = getattr(Apps(state), name)
    work = function(**arguments)
    try:
        work.send(None)  # type: ignore[attr-defined]  # none of the functions waits for anything, so one step ends it
    except StopIteration as done:
        return str(done.value), False
    except (LookupError, ValueError) as error:
        return f"{type(error).__name__}: {error}", True
    raise AssertionError(f"{name} waited for something")


def _check_time(day: str, hour: int) -> None:
    if day not in DAYS or not FIRST_HOUR <= hour <= LAST_HOUR:
        raise ValueError(f"there is no {day} at {hour}")


def _positive(amount: int) -> int:
    if amount <= 0:
        raise ValueError(f"{amount} is no amount")
    return amount
