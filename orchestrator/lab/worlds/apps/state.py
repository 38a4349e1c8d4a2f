"""State of the apps: contacts, calendar, mail, notes and payments."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass, field
from typing import Final

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
