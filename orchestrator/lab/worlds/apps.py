"""`AppsWorld`: errands on stateful apps, checked by tests on the state that is left."""

import random
import re
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from ....protocols import Agent, InvalidRequest
from ...task.tools import Tool
from . import Argument, FinalAnswer, Grade, OracleAgent, Program, Split, Step, WorldTask, names
from .app_functions import DAYS, FIRST_HOUR, LAST_HOUR, AppState, Event, Item, Mail, app_tools, run_now

PERSONS: Final = 6
EVENTS: Final = 6
NOTES: Final = 4
_SUBJECTS: Final = ("invoice", "invitation", "number")
_ROUNDS: Final = {
    "pay_invoice": "pay what their invoice asks for",
    "accept_invitation": "put their invitation into the calendar",
    "save_number": "save the number that they wrote",
    "delete_invoice": "delete their invoice",
}
TEST_MIX: Final[Mapping[str, float]] = {
    "1 errand": 0.2,
    "2 errands": 0.2,
    "3 errands": 0.2,
    "4 errands": 0.1,
    "round of 2": 0.1,
    "round of 3": 0.1,
    "round of 4": 0.1,
}
"""Share of each kind of task."""


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


def _step(tool: str, **arguments: Argument | str | int) -> Step:
    known = {name: value if isinstance(value, Argument) else Argument(value) for name, value in arguments.items()}
    return Step(tool, tuple(known.items()))


@dataclass(frozen=True)
class Assignment:
    """One task: a state to begin with, what to do, and the program that does it."""

    kind: str
    text: str
    state: AppState
    errands: tuple[Errand, ...]
    program: Program
    bounds: tuple[int, ...]
    """The index behind each errand's last step."""

    @property
    def difficulty(self) -> int:
        return len(self.errands)

    def advice(self, done: Collection[int]) -> str:
        """Return in words the errands that are still to be finished."""
        starts = (0, *self.bounds)
        left = [
            errand.phrase
            for errand, start, end in zip(self.errands, starts, self.bounds, strict=False)
            if any(step not in done for step in range(start, end))
        ]
        return f"{', then '.join(left)}." if left else "answer done."


def draw_assignment(random_: random.Random, split: Split, kind: str) -> Assignment:
    """Draw a task of a kind: `1 errand` ... `4 errands`, `round of 2` ... `round of 4`."""
    while True:
        desk = Desk(random_, split)
        try:
            text, errands = _errands(desk, random_, kind)
        except IndexError:  # nothing is left on this desk that no other errand touches
            continue
        program, bounds = _join(errands)
        return Assignment(kind, f"Please {text}.", desk.state, tuple(errands), program, bounds)


def _errands(desk: Desk, random_: random.Random, kind: str) -> tuple[str, list[Errand]]:
    if kind.startswith("round of "):
        return desk.round(int(kind.removeprefix("round of ")))
    errands = [desk.errand(name) for name in random_.sample(tuple(ERRANDS), int(kind[0]))]
    return ", then ".join(errand.phrase for errand in errands), errands


def _join(errands: Sequence[Errand]) -> tuple[Program, tuple[int, ...]]:
    steps: list[Step] = []
    bounds: list[int] = []
    for errand in errands:
        steps += [_shift(step, len(steps)) for step in errand.steps]
        bounds.append(len(steps))
    return Program(tuple(steps), FinalAnswer((Argument("done"),))), tuple(bounds)


def _shift(step: Step, offset: int) -> Step:
    moved = (
        (name, argument if argument.source is None else Argument(argument.value, argument.name, argument.source + offset))
        for name, argument in step.arguments
    )
    return Step(step.tool, tuple(moved))


class AppsWorld:
    """Errands on contacts, calendar, mail, notes and payments; task success and test pass ratio."""

    name = "apps"

    def __init__(self, split: Split = "test", mix: Mapping[str, float] = TEST_MIX) -> None:
        self._split: Split = split
        self._mix = dict(mix)
        self._draw = lru_cache(maxsize=4096)(self._draw_uncached)
        self._by_prompt: dict[str, Assignment] = {}

    def tasks(self, count: int, seed: int) -> Sequence[WorldTask]:
        """Draw `count` tasks; those of a smaller count come first."""
        return [self._task(seed, number) for number in range(count)]

    def reset(self, task: WorldTask) -> "AppsEpisode":
        """Set the apps up for the task. Raises `InvalidRequest` for a task of another world."""
        return AppsEpisode(self.assignment(task))

    def oracle(self) -> Agent:
        """Return the supervisor that knows every solution."""
        return OracleAgent(self.name, self._by_prompt.get)

    def assignment(self, task: WorldTask) -> Assignment:
        """Return the task with its solution. Raises `InvalidRequest` for a task of another world."""
        match = re.fullmatch(rf"apps-{self._split}-(-?\d+)-(\d+)", task.identifier)
        assignment = self._draw(int(match[1]), int(match[2])) if match else None
        if assignment is None or assignment.text != task.prompt:
            raise InvalidRequest(f"{task.identifier!r} is no task of this apps world", hint="take tasks from the world that resets them")
        self._by_prompt[assignment.text] = assignment
        return assignment

    def _task(self, seed: int, number: int) -> WorldTask:
        assignment = self._draw(seed, number)
        self._by_prompt[assignment.text] = assignment
        identifier = f"apps-{self._split}-{seed}-{number}"
        return WorldTask(identifier=identifier, prompt=assignment.text, kind=assignment.kind, difficulty=assignment.difficulty)

    def _draw_uncached(self, seed: int, number: int) -> Assignment:
        random_ = random.Random(f"apps/{self._split}/{seed}/{number}")
        kind = random_.choices(list(self._mix), list(self._mix.values()))[0]
        return draw_assignment(random_, self._split, kind)


class AppsEpisode:
    """One task being worked on, on a state of its own."""

    def __init__(self, assignment: Assignment) -> None:
        self._assignment = assignment
        self.state = assignment.state.copy()
        self.tools: Sequence[Tool] = app_tools(self.state)

    def grade(self, answer: str) -> Grade:
        """Grade with one test per errand, and one that nothing else has changed; the answer itself is not looked at."""
        del answer
        passed = grade_state(self._assignment, self.state)
        ratio = sum(passed) / len(passed)
        return Grade(success=all(passed), score=ratio, measures={"test_pass_ratio": ratio, "task_success": float(all(passed))})

    def close(self) -> None:
        """Do nothing: the episode holds no resources."""


def grade_state(assignment: Assignment, state: AppState) -> list[bool]:
    """Return the outcome of each test on a final state."""
    before = Counter(assignment.state.items())
    now = Counter(state.items())
    effects = _effects(assignment)
    tests = [all(_has_happened(item, change, before, now) for item, change in effect.items()) for effect in effects]
    wanted = Counter({item for effect in effects for item in effect})
    changed = {item for item in before | now if before[item] != now[item]}
    return [*tests, changed <= set(wanted)]


def _effects(assignment: Assignment) -> list[dict[Item, int]]:
    """Return for each errand the items that it adds (+1) and removes (-1)."""
    state = assignment.state.copy()
    effects = []
    starts = (0, *assignment.bounds)
    for start, end in zip(starts, assignment.bounds, strict=False):
        before = Counter(state.items())
        for step in assignment.program.steps[start:end]:
            run_now(state, step.tool, {name: argument.value for name, argument in step.arguments})
        after = Counter(state.items())
        effects.append({item: after[item] - before[item] for item in before | after if after[item] != before[item]})
    return effects


def _has_happened(item: Item, change: int, before: Counter[Item], now: Counter[Item]) -> bool:
    """Return True if the change has happened exactly once: to pay twice is wrong."""
    return now[item] - before[item] == change
