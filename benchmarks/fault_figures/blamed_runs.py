"""Runs of several strategies, and the same runs with one mistake at a random step, which a blame has to find.

The agent that makes the mistake makes it whenever it is asked the same, as a model does that does not know better, and all else follows
from what was said and found before.
"""

import json
import random
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from nearfar import Tool, tool
from nearfar.orchestrator.hybrid.arguments import TaskOptions
from nearfar.orchestrator.lab.worlds import names
from nearfar.orchestrator.strategies.prompts import (
    AGGREGATE_FINDINGS,
    CONTINUE,
    INTERVENE,
    PLAN,
    PLAN_SUBTASKS,
    READ_CHUNK,
    VERIFY_PLAN,
    WRITE_JOBS,
)
from nearfar.orchestrator.task.modes import Strategy
from nearfar.orchestrator.task.policy import MinionsConfig, Policy, SubtasksConfig, SupervisionConfig
from nearfar.protocols import Agent, Message, ScriptedAgent, Sensitivity, Side, StepRequest, ToolCall
from nearfar.protocols.fakes import Reply

_COMPANY: Final = r"leads ([A-Z]\w+ \w+)"
_NAME: Final = re.compile(r"[A-Z][a-z]+ [A-Z][a-z]+")
_ROUNDS: Final = 2


@dataclass
class Mistake:
    """One reply of a run, gone wrong."""

    place: int
    """How many replies are right before it."""
    wrong: str
    """A name that is wrong wherever it stands."""
    at: tuple[Side, tuple[Message, ...]] | None = None
    """Who was asked what there, once it was."""
    _count: int = field(default=0, repr=False)

    def said(self, side: Side, request: StepRequest, right: Reply) -> Reply:
        """The reply, wrong where it is to be."""
        asked = (side, request.messages)
        if self.at is None and self._count == self.place:
            self.at = asked
        self._count += 1
        return self._spoilt(right) if self.at == asked else right

    def _spoilt(self, right: Reply) -> Reply:
        if isinstance(right, ToolCall):
            return right.model_copy(update={"arguments": dict.fromkeys(right.arguments, self.wrong)})
        assert isinstance(right, str), "a script says texts and calls"
        if right == CONTINUE:
            return f"{INTERVENE}\n{_plan(self.wrong)}"
        found = _NAME.findall(right)
        return right.replace(found[-1], self.wrong) if found else right


class Table:
    """Who leads which company, and where they were born."""

    def __init__(self, random_: random.Random) -> None:
        people = random_.sample(names("person", "test"), 6)
        cities = random_.sample(names("city", "test"), 6)
        self.companies = random_.sample(names("company", "test"), 6)
        self.leaders = dict(zip(self.companies, people, strict=True))
        self.birthplaces = dict(zip(people, cities, strict=True))
        self.asked = self.companies[:_ROUNDS]

    @property
    def wrong(self) -> str:
        """A company that no task asks about: what follows from it is found, and wrong."""
        return self.companies[-1]

    @property
    def tools(self) -> tuple[Tool, ...]:
        written: list[str] = []

        @tool(effect="read")
        def leader(company: str) -> str:
            """Who leads a company."""
            return self.leaders[company]

        @tool(effect="read")
        def birthplace(person: str) -> str:
            """Return where a person was born."""
            return self.birthplaces[person]

        @tool
        def write(text: str) -> str:
            """Write something into the book, where it stays."""
            written.append(text)
            return f"line {len(written)}"

        return leader, birthplace, write

    @property
    def text(self) -> str:
        """All of it, in sentences."""
        return "\n".join(
            f"In {2000 + number} it was said: {leader} leads {company}, to nobody's surprise in the end."
            for number, (company, leader) in enumerate(self.leaders.items())
        )


Brain = Callable[[StepRequest], Reply]


def looks_up(request: StepRequest) -> Reply:
    """An executor that finds out where the leader of the company that it is asked about was born."""
    results = [message.tool_result.content for message in request.messages if message.tool_result is not None]
    prompt = next(message.text for message in request.messages if message.role == "user")
    company = re.findall(_COMPANY, prompt)[-1]
    if not results:
        return ToolCall(id="1", name="leader", arguments={"company": company})
    if len(results) == 1:
        return ToolCall(id="2", name="birthplace", arguments={"person": results[0]})
    return results[-1]


def writes(request: StepRequest) -> Reply:
    """An executor that writes into a book what it has found out."""
    said = looks_up(request)
    results = [message.tool_result.content for message in request.messages if message.tool_result is not None]
    if len(results) == 3:
        return "done"
    return ToolCall(id="3", name="write", arguments={"text": said}) if isinstance(said, str) else said


def obeys(request: StepRequest) -> Reply:
    """A supervisor that plans and finds the work in order, and an executor that keeps to the plan."""
    system, said = request.messages[0].text, request.messages[-1].text
    if system == PLAN:
        return _plan(re.findall(_COMPANY, said)[0])
    if system == VERIFY_PLAN:
        return CONTINUE
    return looks_up(request)


def _plan(company: str) -> str:
    """What `looks_up` finds its company in."""
    return f"1. leader(company=<the one that she leads {company}>)\n2. birthplace(person=<who leads {company}>)\n3. answer <city>"


def cuts(request: StepRequest) -> Reply:
    """Everybody of a task that is cut: one part for each company, and an answer from what the parts came to."""
    system, said = request.messages[0].text, request.messages[-1].text
    if system.startswith(PLAN_SUBTASKS):
        parts = [{"id": company[:3], "task": f"Where was born who leads {company}?", "needs": []} for company in re.findall(_COMPANY, said)]
        return json.dumps({"subtasks": parts})
    if request.messages[0].role == "system":
        return " and ".join(re.findall(r"^= (.*)", said, re.MULTILINE))
    return looks_up(request)


def reads(request: StepRequest) -> Reply:
    """Everybody of a task about a long text."""
    system, said = request.messages[0].text, request.messages[-1].text
    if system.startswith(WRITE_JOBS):
        return json.dumps({"jobs": [{"instruction": f"Find who leads {company}", "advice": ""} for company in re.findall(_COMPANY, said)]})
    if system == READ_CHUNK:
        company = re.findall(_COMPANY, said)[-1]
        found = re.search(rf"(\w+ \w+) leads {company}", said)
        quoted = None if found is None else found.group()
        return json.dumps({"explanation": "it says so", "citation": quoted, "answer": None if found is None else found[1]})
    assert system == AGGREGATE_FINDINGS, "there is no other role"
    found_ = re.findall(r"^- chunk \d+: (\w+ \w+)", said, re.MULTILINE)
    return json.dumps({"answer": " and ".join(dict.fromkeys(found_)) or "nobody", "scratchpad": "", "jobs": []})


def guesses(request: StepRequest) -> Reply:
    """An executor that looks everything up, and then says something else."""
    said = looks_up(request)
    return "nobody knows" if isinstance(said, str) else said


@dataclass(frozen=True)
class Case:
    """A task, and who does it."""

    prompt: str
    tools: tuple[Tool, ...]
    options: TaskOptions
    brain: Brain
    draft: Brain | None = None
    """Of a near agent that knows that it is not sure; None: it is, and has the other's."""

    def agents(self, mistake: Mistake | None) -> Mapping[Side, Agent]:
        def said(side: Side, request: StepRequest) -> Reply:
            right = self.draft(request) if self.draft is not None and side is Side.NEAR else self.brain(request)
            return right if mistake is None else mistake.said(side, request, right)

        near, far = (partial(said, side) for side in (Side.NEAR, Side.FAR))
        return {
            Side.NEAR: ScriptedAgent(near, name="near", confidence=0.9 if self.draft is None else 0.1),
            Side.FAR: ScriptedAgent(far, name="far", side=Side.FAR, confidence=0.9),
        }


def cut_task(table: Table) -> Case:
    """A task in two parts that run side by side."""
    policy = Policy(strategy=Strategy.SUBTASKS, sensitivity=Sensitivity.PUBLIC, subtasks=SubtasksConfig(strategy=Strategy.DEVICE))
    return Case(f"Where was born {_listed(table.asked)}?", table.tools, {"policy": policy}, cuts)


def planned_task(table: Table) -> Case:
    """A task that is planned, and checked after each turn."""
    policy = Policy(strategy=Strategy.PEVR, sensitivity=Sensitivity.PUBLIC, supervision=SupervisionConfig(interval=1))
    return Case(f"Where was born who leads {table.asked[0]}?", table.tools, {"policy": policy}, obeys)


def writing_task(table: Table) -> Case:
    """A task that changes something, whose answer says nothing of it."""
    policy = Policy(strategy=Strategy.DEVICE, sensitivity=Sensitivity.PUBLIC)
    return Case(f"Write down where was born who leads {table.asked[0]}.", table.tools, {"policy": policy}, writes)


def long_task(table: Table) -> Case:
    """A task about a text in chunks."""
    minions = MinionsConfig(chunk_characters=100, overlap_characters=0, maximum_rounds=1)
    policy = Policy(strategy=Strategy.MINIONS, sensitivity=Sensitivity.PUBLIC, minions=minions)
    return Case(f"Name {_listed(table.asked)}.", (), {"policy": policy, "context": table.text}, reads)


def doubted_task(table: Table) -> Case:
    """A task whose first draft is rejected for want of confidence, whatever it says."""
    policy = Policy(strategy=Strategy.CASCADE, sensitivity=Sensitivity.PUBLIC)
    prompt = f"Where was born who leads {table.asked[0]}?"
    return Case(prompt, table.tools, {"policy": policy}, looks_up, guesses)


CASES: Final[Mapping[str, Callable[[Table], Case]]] = {
    "device": writing_task,
    "cascade": doubted_task,
    "pevr": planned_task,
    "minions": long_task,
    "subtasks": cut_task,
}


def _listed(companies: Sequence[str]) -> str:
    return " and ".join(f"who leads {company}" for company in companies)
