"""Errands: what a user may want done, each as steps on the apps."""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from ..names import names
from ..program import Argument, Step
from ..world import Split
from .state import DAYS, FIRST_HOUR, LAST_HOUR, AppState, Event, Mail

PERSONS: Final = 6
EVENTS: Final = 6
NOTES: Final = 4
_SUBJECTS: Final = ("invoice", "invitation", "number")


@dataclass(frozen=True, slots=True)
class Errand:
    """One thing to do. `phrase` completes "Please ..."; sources of arguments count from the errand's own first step."""

    phrase: str
    steps: tuple[Step, ...]


class Desk:
    """A state to begin with, and errands that can be run on it."""

    def __init__(self, random_: random.Random, split: Split) -> None:
        self._random = random_
        self._people = random_.sample(names("person", split), PERSONS)
        titles = random_.sample(names("event", split), EVENTS + PERSONS)
        self._events, self._invitations = titles[:EVENTS], titles[EVENTS:]
        self._notes = random_.sample(names("note", split), NOTES + PERSONS)
        self.state = self._furnished()
        self._mail_of = {(mail.sender, mail.subject): identifier for identifier, mail in self.state.mails.items()}
        self._event_of = {event.title: identifier for identifier, event in self.state.events.items()}
        self._touched: set[str] = set()

    def errand(self, name: str) -> Errand:
        """Draw an errand of the given name. Raises `IndexError` if every person or thing for it is touched by another errand."""
        return ERRANDS[name](self)

    def round(self, count: int) -> tuple[str, list[Errand]]:
        """Draw one errand for several people, and the phrase for all of them together."""
        name = self._random.choice(tuple(_ROUNDS))
        errands = [self.errand(name) for _ in range(count)]
        people = [str(errand.steps[0].arguments[0][1].value) for errand in errands]
        return f"for each of {', '.join(people[:-1])} and {people[-1]}: {_ROUNDS[name]}", errands

    def _furnished(self) -> AppState:
        random_ = self._random
        state = AppState(contacts={name: f"{random_.randint(1000, 9999)}" for name in self._people})
        state.events = {f"e{number}": Event(title, *self._time()) for number, title in enumerate(self._events, start=1)}
        mails = [self._mail(sender, subject) for sender in self._people for subject in random_.sample(_SUBJECTS, random_.randint(2, 3))]
        random_.shuffle(mails)
        state.mails = {f"m{number}": mail for number, mail in enumerate(mails, start=1)}
        state.notes = {title: str(random_.randint(10, 99)) for title in self._notes[:NOTES]}
        return state

    def _mail(self, sender: str, subject: str) -> Mail:
        if subject == "invoice":
            return Mail(sender, subject, f"Please pay me {self._random.randint(10, 99)}.")
        if subject == "number":
            return Mail(sender, subject, f"My number is {self._random.randint(1000, 9999)}.")
        day, hour = self._time()
        return Mail(sender, subject, f"{self._invitations[self._people.index(sender)]} on {day} at {hour}.")

    def _time(self) -> tuple[str, int]:
        return self._random.choice(DAYS), self._random.randint(FIRST_HOUR, LAST_HOUR)

    def _pick(self, candidates: Sequence[str], purpose: str = "") -> str:
        """Pick a candidate that no other errand touches for the same purpose, so that the order of errands does not matter."""
        free = [name for name in candidates if purpose + name not in self._touched]
        chosen = self._random.choice(free)
        self._touched.add(purpose + chosen)
        return chosen

    def _sender(self, subject: str) -> str:
        senders = [sender for sender, of in self._mail_of if of == subject]
        if subject != "number":
            return self._pick(senders, subject)
        # A new number must not depend on whether another errand asked for the old one before.
        return self._pick(senders, "phone")

    def _read(self, subject: str) -> tuple[str, str, list[Step]]:
        """Return a sender with such a mail, its text, and the two steps that read it."""
        sender = self._sender(subject)
        identifier = self._mail_of[sender, subject]
        steps = [_step("find_mails", sender=sender), _step("read_mail", mail=Argument(identifier, subject, 0))]
        return sender, self.state.mails[identifier].text, steps

    def pay_invoice(self) -> Errand:
        sender, text, steps = self._read("invoice")
        amount = int(text.removesuffix(".").rpartition(" ")[2])
        pay = _step("pay", person=sender, amount=Argument(amount, "amount", 1))
        return Errand(f"pay {sender} what their invoice asks for", (*steps, pay))

    def accept_invitation(self) -> Errand:
        sender, text, steps = self._read("invitation")
        title, _, time = text.removesuffix(".").partition(" on ")
        day, _, hour = time.partition(" at ")
        add = _step("add_event", title=Argument(title, "title", 1), day=Argument(day, "day", 1), hour=Argument(int(hour), "hour", 1))
        return Errand(f"put the invitation from {sender} into the calendar", (*steps, add))

    def save_number(self) -> Errand:
        sender, text, steps = self._read("number")
        number = text.removesuffix(".").rpartition(" ")[2]
        return Errand(
            f"save the number that {sender} wrote", (*steps, _step("add_contact", name=sender, phone=Argument(number, "number", 1)))
        )

    def delete_invoice(self) -> Errand:
        sender = self._sender("invoice")
        mail = Argument(self._mail_of[sender, "invoice"], "invoice", 0)
        return Errand(f"delete the invoice from {sender}", (_step("find_mails", sender=sender), _step("delete_mail", mail=mail)))

    def share_number(self) -> Errand:
        about = self._pick(self._people, "phone")
        to = self._random.choice([name for name in self._people if name != about])
        text = Argument(self.state.contacts[about], "phone", 0)
        return Errand(f"mail {to} the phone number of {about}", (_step("find_contact", name=about), _step("send_mail", to=to, text=text)))

    def note_number(self) -> Errand:
        about = self._pick(self._people, "phone")
        title = self._pick(self._notes[NOTES:])
        text = Argument(self.state.contacts[about], "phone", 0)
        steps = (_step("find_contact", name=about), _step("add_note", title=title, text=text))
        return Errand(f"note the phone number of {about} as {title}", steps)

    def move_event(self) -> Errand:
        title = self._pick(self._events)
        event = self.state.events[self._event_of[title]]
        day = self._random.choice([name for name in DAYS if name != event.day])
        move = _step("move_event", event=Argument(self._event_of[title], "event", 0), day=day, hour=Argument(event.hour, "hour", 0))
        return Errand(f"move {title} to {day}", (_step("find_event", title=title), move))

    def cancel_event(self) -> Errand:
        title = self._pick(self._events)
        cancel = _step("cancel_event", event=Argument(self._event_of[title], "event", 0))
        return Errand(f"cancel {title}", (_step("find_event", title=title), cancel))

    def tell_time(self) -> Errand:
        title = self._pick(self._events)
        to = self._random.choice(self._people)
        event = self.state.events[self._event_of[title]]
        tell = _step("send_mail", to=to, text=Argument(f"{event.day} {event.hour}", "day and hour", 0))
        return Errand(f"mail {to} when {title} is", (_step("find_event", title=title), tell))

    def pay_note(self) -> Errand:
        title = self._pick(self._notes[:NOTES])
        person = self._pick(self._people, "note")
        pay = _step("pay", person=person, amount=Argument(int(self.state.notes[title]), "amount", 0))
        return Errand(f"pay {person} the amount in the note {title}", (_step("find_note", title=title), pay))

    def delete_note(self) -> Errand:
        title = self._pick(self._notes[:NOTES])
        return Errand(f"delete the note {title}", (_step("delete_note", title=title),))

    def pay(self) -> Errand:
        person = self._pick(self._people, "pay")
        amount = self._random.randint(10, 99)
        return Errand(f"pay {person} {amount}", (_step("pay", person=person, amount=amount),))

    def request(self) -> Errand:
        person = self._pick(self._people, "request")
        amount = self._random.randint(10, 99)
        return Errand(f"ask {person} for {amount}", (_step("request_payment", person=person, amount=amount),))

    def add_event(self) -> Errand:
        title = self._pick(self._invitations, "new")
        day, hour = self._time()
        return Errand(f"add {title} on {day} at {hour}", (_step("add_event", title=title, day=day, hour=hour),))


ERRANDS: Final[dict[str, Callable[[Desk], Errand]]] = {
    name: function for name, function in vars(Desk).items() if not name.startswith("_") and name not in ("errand", "round")
}
_ROUNDS: Final = {
    "pay_invoice": "pay what their invoice asks for",
    "accept_invitation": "put their invitation into the calendar",
    "save_number": "save the number that they wrote",
    "delete_invoice": "delete their invoice",
}


def _step(tool: str, **arguments: Argument | str | int) -> Step:
    known = {name: value if isinstance(value, Argument) else Argument(value) for name, value in arguments.items()}
    return Step(tool, tuple(known.items()))
