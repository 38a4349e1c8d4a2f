"""The hub's books under random events: every step ends once, with what its own worker said in time, and nothing of it is left behind."""

import asyncio
from collections.abc import Coroutine
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar

import pytest
from attached_world import OWN, TOKENS, ask
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from nearfar.protocols import (
    AgentCard,
    ConfigError,
    DeviceState,
    Finished,
    InvalidRequest,
    RateLimited,
    Side,
    TextDelta,
    Unavailable,
)
from nearfar.protocols.hub import Hub
from nearfar.protocols.hub_session import AttachedStep, Registration, WorkerSession
from nearfar.protocols.v1 import agent_pb2, hub_pb2

Returned = TypeVar("Returned")
WORKERS = st.sampled_from(sorted(TOKENS))
INSTANCES = st.sampled_from(("first process", "second process"))
FINISHED = agent_pb2.StepEvent(finished=agent_pb2.Finished(reason=agent_pb2.FINISH_REASON_STOP, model="m"))


@dataclass(eq=False)
class Known:
    """What the test knows of a step."""

    session: WorkerSession
    step: AttachedStep
    said: list[str] = field(default_factory=list)
    """Texts that came while somebody read."""
    end: Literal["finished", "failed", "lost", "given up"] | None = None
    is_on_worker: bool = True
    """The worker has not ended it."""


class Books(RuleBasedStateMachine):
    """Workers attach, leave, are replaced and drained; steps are started, read, given up and ended, in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner()
        self.hub = self.run(self.make_hub())
        self.live: dict[str, WorkerSession] = {}
        self.steps: list[Known] = []

    def run(self, work: Coroutine[Any, Any, Returned]) -> Returned:
        return self.runner.run(work)

    async def make_hub(self) -> Hub:
        return Hub(TOKENS, policies=OWN)

    def lose(self, session: WorkerSession) -> None:
        """The session is over in the test's own books too."""
        for known in self.steps:
            if known.session is session:
                known.end = known.end or "lost"
                known.is_on_worker = False

    @rule(worker=WORKERS, instance=INSTANCES)
    def attach(self, worker: str, instance: str) -> None:
        card = AgentCard(name="model", side=Side.NEAR, model="m")
        registration = Registration(instance=instance, cards=(card,), state=DeviceState())
        old = self.live.get(worker)
        if old is not None and old.instance != instance:
            with pytest.raises(ConfigError):
                self.hub.register(worker, registration)
            return
        if old is not None:
            self.lose(old)
        self.live[worker] = self.hub.register(worker, registration)
        assert old is None or old.is_closed

    @rule(worker=WORKERS)
    def detach(self, worker: str) -> None:
        if (session := self.live.pop(worker, None)) is not None:
            session.close(Unavailable("the connection was lost"))
            self.lose(session)

    @rule(worker=WORKERS)
    def drain(self, worker: str) -> None:
        if (session := self.live.get(worker)) is not None:
            session.receive(hub_pb2.WorkerMessage(draining=hub_pb2.Draining()))

    @rule(worker=WORKERS)
    def start(self, worker: str) -> None:
        async def start() -> tuple[WorkerSession, AttachedStep]:
            return self.hub.start(worker, ask())

        session = self.live.get(worker)
        if session is None or session.is_draining:
            with pytest.raises(Unavailable):
                self.run(start())
            return
        given, step = self.run(start())
        assert given is session
        assert all(step.number != known.step.number for known in self.steps)
        self.steps.append(Known(session, step))

    @precondition(lambda self: any(known.is_on_worker for known in self.steps))
    @rule(data=st.data(), text=st.text(min_size=1, max_size=3))
    def say(self, data: st.DataObject, text: str) -> None:
        known = self.choose(data, on_worker=True)
        self.send(known, agent_pb2.StepEvent(text=text))
        if known.end is None:
            known.said.append(text)

    @precondition(lambda self: any(known.is_on_worker for known in self.steps))
    @rule(data=st.data(), well=st.booleans())
    def end(self, data: st.DataObject, well: bool) -> None:
        known = self.choose(data, on_worker=True)
        self.send(known, FINISHED if well else None)
        known.end = known.end or ("finished" if well else "failed")
        known.is_on_worker = False

    @precondition(lambda self: any(not known.is_on_worker and not known.session.is_closed for known in self.steps))
    @rule(data=st.data())
    def say_after_the_end(self, data: st.DataObject) -> None:
        known = data.draw(st.sampled_from([known for known in self.steps if not known.is_on_worker and not known.session.is_closed]))
        with pytest.raises(InvalidRequest):
            self.send(known, agent_pb2.StepEvent(text="after the end"))

    @precondition(lambda self: self.steps)
    @rule(data=st.data())
    def give_up(self, data: st.DataObject) -> None:
        known = self.choose(data, on_worker=False)
        known.session.give_up(known.step)
        known.end = known.end or "given up"

    def choose(self, data: st.DataObject, *, on_worker: bool) -> Known:
        return data.draw(st.sampled_from([known for known in self.steps if known.is_on_worker or not on_worker]))

    def send(self, known: Known, event: agent_pb2.StepEvent | None) -> None:
        output = hub_pb2.StepOutput(step=known.step.number, event=event)
        if event is None:
            output = hub_pb2.StepOutput(step=known.step.number, failure=hub_pb2.StepFailure(reason="RateLimited"))
        known.session.receive(hub_pb2.WorkerMessage(output=output))

    @invariant()
    def nothing_is_left_behind(self) -> None:
        for session in self.live.values():
            assert session.live_steps == sum(known.is_on_worker for known in self.steps if known.session is session)
        assert {name: id(session) for name, session in self.hub.attached.items()} == {
            name: id(session) for name, session in self.live.items()
        }

    @invariant()
    def steps_are_over_exactly_where_they_ended(self) -> None:
        assert all(known.step.is_over == (known.end is not None) for known in self.steps)

    def teardown(self) -> None:
        for worker in sorted(TOKENS):
            self.detach(worker)
        for known in self.steps:
            self.run(self.check_outcome(known))
        self.runner.close()

    async def check_outcome(self, known: Known) -> None:
        for text in known.said:
            assert await known.step.next() == TextDelta(text=text)
        match known.end:
            case "finished":
                assert isinstance(await known.step.next(), Finished)
                assert await known.step.next() is None
            case "given up":
                assert await known.step.next() is None
            case "failed" | "lost":
                with pytest.raises(RateLimited if known.end == "failed" else Unavailable):
                    await known.step.next()
            case None:
                raise AssertionError("the step never ended")


TestBooks = Books.TestCase
TestBooks.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)
