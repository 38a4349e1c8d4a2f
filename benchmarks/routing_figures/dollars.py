"""How well `dollars_per_hour` holds over simulated traffic: tool loops, cascades, plans with checks, classes of other prices, price steps,
bursts, failures.

Nothing is slept: a clock of the simulation's own goes from one event to the next. The router decides, learns and settles as in a `Hybrid`.
"""

import heapq
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal
from itertools import count
from pathlib import Path
from random import Random
from typing import Any, Final, NamedTuple

from nearfar.orchestrator.budgets import Commitment
from nearfar.orchestrator.lab.replay import RecordedAgent
from nearfar.orchestrator.routing import Router
from nearfar.orchestrator.routing.drafts import DraftChoice
from nearfar.orchestrator.routing.navigator import PLAN_TOKENS, SupervisionChoice
from nearfar.orchestrator.task import Task, as_messages
from nearfar.orchestrator.task.decisions import RouteDecision
from nearfar.orchestrator.task.modes import Strategy
from nearfar.orchestrator.task.policy import Policy
from nearfar.orchestrator.task.results import Call
from nearfar.orchestrator.task.routing_policy import ObjectiveConfig, RouterConfig
from nearfar.protocols import Prices, Sensitivity, Side, Usage

HOURLY: Final = 10.0
"""Dollars per hour."""
_STREAMS: Final = 30
_QUICK_SEED: Final = 17
_HOUR: Final = 3600.0
_HOURS: Final = 4
_PRICES: Final = Prices.model_validate({"input": 3, "output": 15, "cached_input": "0.3", "source": "made up", "as_of": "2026-11-01"})
_AGENTS: Final = (RecordedAgent("near", Side.NEAR), RecordedAgent("far", Side.FAR, prices=_PRICES))
_FAILING: Final = 0.1
"""Share of far tasks that fail in the middle, and cost what they took until then."""
_INTERVAL: Final = 2
"""Steps of the near agent between two checks of a planned task."""
_VERDICT_TOKENS: Final = 40
"""Tokens of a check."""


def figures(_folder: Path, *, quick: bool) -> dict[str, Any]:
    """The extremes of dollars spent over dollars allowed, over all streams, in any hour from the first one on. A quick run plays one that
    has all strategies, bursts and a price step."""
    streams = [Stream.drawn(seed).played() for seed in ([_QUICK_SEED] if quick else range(_STREAMS))]
    highest, lowest = max(found.highest for found in streams), min(found.lowest for found in streams)
    return {
        "dollar_rate_streams": len(streams),
        "dollar_rate_tasks": sum(found.tasks for found in streams),
        "dollar_error": {"highest": round(highest, 4), "lowest": round(lowest, 4)},
        "dollar_rate_worst_share_placed_far": round(min(found.far_share for found in streams), 4),
        "dollar_rate_longest_wait_minutes": round(max(found.longest_wait for found in streams) / 60, 2),
    }


@dataclass(frozen=True, slots=True)
class Played:
    """What came of a stream."""

    tasks: int
    far_share: float
    highest: float
    """Dollars of the dearest hour over those allowed: any hour that ends with a bill, the first one included."""
    lowest: float
    """The same of the cheapest full hour."""
    longest_wait: float
    """Seconds from one task that went far to the next one."""


@dataclass(frozen=True, slots=True)
class _Kind:
    """A class of tasks. `words` are those of its prompts."""

    name: str
    words: int
    steps: int
    """In the mean; each reads again what all before it have read."""
    found: int
    """Tokens that each step's tools return."""
    seconds: float
    """Of a step."""
    gain: float
    """Share of its tasks that only the far agent does right."""
    strategy: Strategy


@dataclass(frozen=True, slots=True)
class _UnderWay:
    """A task that is being served."""

    task: Task
    commitments: list[Commitment]
    calls: Sequence[Call]
    kind: _Kind
    decision: RouteDecision
    is_right: bool
    """The near agent does it right, so that a check of its draft has no objection."""

    @property
    def is_draft(self) -> bool:
        """A near agent is at work, whose draft will be judged."""
        return self.decision.judged and self.decision.supervisor is None and self.calls[-1].side is Side.NEAR


class _Step(NamedTuple):
    """The end of a step of a task."""

    when: float
    order: int
    number: int
    """From 1."""
    task: _UnderWay


@dataclass(slots=True)
class Stream:
    """Traffic of one kind for some hours, and the router that serves it."""

    random: Random
    kinds: tuple[_Kind, ...]
    demand: float
    """Dollars of all tasks if all went far, before tasks become dearer, over those allowed."""
    rise: int
    """Factor by which tasks become dearer in the middle of the stream."""
    burst: float
    """Factor by which they come faster in bursts."""
    now: float = 0.0
    paid: list[tuple[float, float]] = field(default_factory=list)
    sent: list[float] = field(default_factory=list)
    escalated: int = 0

    @classmethod
    def drawn(cls, seed: int) -> "Stream":
        """Return a stream that this seed draws."""
        random = Random(seed)
        kinds = tuple(
            _Kind(
                name=f"class/{place}",
                words=random.choice((10, 60, 400)),
                steps=random.choice((1, 3, 8)),
                found=random.choice((100, 400)),
                seconds=random.uniform(0.3, 2),
                gain=random.uniform(0.3, 0.9),
                strategy=random.choice((Strategy.ROUTE, Strategy.CASCADE, Strategy.PEVR)),
            )
            for place in range(random.randint(1, 5))
        )
        return cls(random, kinds, random.uniform(1.4, 3), random.choice((1, 10)), random.choice((1, 4)))

    def played(self) -> Played:
        """Serve the stream to its end."""
        router = Router(monotonic=lambda: self.now, seed=1)
        steps: list[_Step] = []
        order, tasks, far = count(), 0, 0
        for arrival in self._arrivals():
            while steps and steps[0].when <= arrival:
                self._end(router, heapq.heappop(steps), steps)
            self.now = arrival
            tasks += 1
            kind = self.random.choice(self.kinds)
            task = _task(kind, tasks)
            commitments: list[Commitment] = []
            decision = router.decide(task, _AGENTS, tools=_tools(kind), commitments=commitments)
            agent = decision.candidates[0]
            is_planned = decision.supervisor is not None and _choice(router, task, decision, commitments).buys()
            far += agent == "far" or is_planned
            self.sent += [arrival] if agent == "far" or is_planned else []
            calls = self._supervised(kind) if is_planned else self._calls(kind, agent)
            served = _UnderWay(task, commitments, calls, kind, decision, self.random.random() > kind.gain)
            heapq.heappush(steps, _Step(arrival + served.calls[0].seconds, next(order), 1, served))
            if not served.is_draft:
                router.learn(task, decision, agent, score=float(agent == "far" or served.is_right))
        return self._found(tasks, far + self.escalated)

    def _end(self, router: Router, step: "_Step", steps: "list[_Step]") -> None:
        """End a step, and begin the next one of the task or end that."""
        self.now, served = step.when, step.task
        taken = sum(float(call.dollars or 0) for call in served.calls[: step.number])
        if step.number < len(served.calls):
            is_far = served.calls[step.number - 1].role == "execute" and served.calls[step.number - 1].side is Side.FAR
            router.extend(served.task, served.commitments, taken, is_far=is_far)
            heapq.heappush(steps, step._replace(when=step.when + served.calls[step.number].seconds, number=step.number + 1))
            return
        if served.is_draft and self._escalates(router, served):
            calls = self._calls(served.kind, "far")
            more = replace(served, calls=[*served.calls, *calls])
            heapq.heappush(steps, step._replace(when=step.when + calls[0].seconds, number=step.number + 1, task=more))
            return
        agent = served.calls[-1].agent
        own = [call for call in served.calls if call.agent == agent and call.role == "execute"]
        router.learn_costs(served.task, agent, own, tools=served.task.tags)
        if served.decision.supervisor is not None:
            choice = _choice(router, served.task, served.decision, served.commitments)
            choice.learn([call for call in served.calls if call.role != "execute"])
        router.settle(served.task, served.commitments, taken)
        self.paid.append((step.when, taken))

    def _escalates(self, router: Router, served: _UnderWay) -> bool:
        """Judge a draft by a check that is right nine times in ten."""
        objects = served.is_right != (self.random.random() < 0.9)
        choice = DraftChoice(router.drafts, served.task, served.decision, "far", commitments=served.commitments)
        escalates = choice.weigh_checks("a check" if objects else None, agrees=None, confidence=None).escalates
        self.escalated += escalates
        self.sent += [self.now] if escalates else []
        return escalates

    def _arrivals(self) -> Iterator[float]:
        mean = sum(_mean_dollars(kind) for kind in self.kinds) / len(self.kinds)
        rate = self.demand * HOURLY / mean / _HOUR
        now, end = 0.0, _HOURS * _HOUR
        while now < end:
            is_burst = now % 1200 < 180
            now += self.random.expovariate(rate * (self.burst if is_burst else 1))
            yield now

    def _calls(self, kind: _Kind, agent: str) -> list[Call]:
        """Return the calls of one task; of some the last ones are missing, since they fail."""
        steps = max(1, round(self.random.gauss(kind.steps, kind.steps / 4)))
        steps = self.random.randint(1, steps) if self.random.random() < _FAILING else steps
        return [self._call(kind, agent, "execute", step, _usage(kind, step, self.random.uniform(0.5, 1.5))) for step in range(steps)]

    def _supervised(self, kind: _Kind) -> list[Call]:
        """Return the calls of a task that the near agent does by a plan of the far one, which checks it now and then."""
        calls = [self._call(kind, "far", "plan", 0, _plan_usage(kind, self.random.uniform(0.5, 1.5)))]
        for call in self._calls(kind, "near"):
            calls.append(call)
            if (call.turn + 1) % _INTERVAL == 0:
                calls.append(self._call(kind, "far", "verify", call.turn + 1, _check_usage(kind, call.turn)))
        return calls

    def _call(self, kind: _Kind, agent: str, role: str, step: int, usage: Usage) -> Call:
        factor = self.rise if agent == "far" and self.now > _HOURS * _HOUR / 2 else 1
        dollars = _PRICES.dollars(usage) * Decimal(factor) if agent == "far" else Decimal(0)
        seconds = kind.seconds * self.random.uniform(0.5, 1.5)
        return Call(role=role, agent=agent, side=Side(agent), model="m", turn=step, usage=usage, dollars=dollars, seconds=seconds)

    def _found(self, tasks: int, far: int) -> Played:
        sums, first, highest, lowest = 0.0, 0, 0.0, float("inf")
        for when, dollars in self.paid:
            sums += dollars
            while self.paid[first][0] <= when - _HOUR:
                sums -= self.paid[first][1]
                first += 1
            highest = max(highest, sums)
            if when >= _HOUR:
                lowest = min(lowest, sums)
        waits = (later - sooner for sooner, later in zip(self.sent, self.sent[1:], strict=False))
        return Played(tasks, far / tasks, highest / HOURLY, lowest / HOURLY, max(waits))


def _choice(router: Router, task: Task, decision: RouteDecision, commitments: list[Commitment]) -> SupervisionChoice:
    return SupervisionChoice(router.steering, task, decision, prices=_PRICES, tools=task.tags, commitments=commitments)


def _task(kind: _Kind, number: int) -> Task:
    router = RouterConfig(dollars_per_hour=HOURLY)
    # What a task is worth stands far above its price, so that the budget alone holds tasks back.
    policy = Policy(strategy=kind.strategy, sensitivity=Sensitivity.PUBLIC, router=router, objective=ObjectiveConfig(dollars=0.001))
    prompt = "word " * kind.words
    return Task(messages=as_messages(prompt), task_class=kind.name, policy=policy, tags=_tools(kind), idempotency_key=str(number))


def _tools(kind: _Kind) -> tuple[str, ...]:
    return ("search",) if kind.steps > 1 else ()


def _usage(kind: _Kind, step: int, luck: float) -> Usage:
    read = round(kind.words * 1.25) + 3000
    before = read + step * (kind.found + 100)
    return Usage(input_tokens=before, cached_tokens=before - kind.found if step else 0, output_tokens=round(100 * luck))


def _plan_usage(kind: _Kind, luck: float) -> Usage:
    return Usage(input_tokens=_usage(kind, 0, 1.0).input_tokens, output_tokens=round(PLAN_TOKENS * luck))


def _check_usage(kind: _Kind, step: int) -> Usage:
    """Return the usage of a check, which reads the task and its work so far: all but what the last steps have found for the second time."""
    read = _usage(kind, step, 1.0).input_tokens
    fresh = _INTERVAL * (kind.found + 100)
    return Usage(input_tokens=read, cached_tokens=read - fresh if step >= _INTERVAL else 0, output_tokens=_VERDICT_TOKENS)


def _mean_dollars(kind: _Kind) -> float:
    if kind.strategy is Strategy.PEVR:
        usages = [_plan_usage(kind, 1.0), *(_check_usage(kind, step - 1) for step in range(_INTERVAL, kind.steps + 1, _INTERVAL))]
    else:
        usages = [_usage(kind, step, 1.0) for step in range(kind.steps)]
    return float(sum(map(_PRICES.dollars, usages), Decimal(0)))
