"""`Recording`: the recorded tasks that a replay can use, and how the router gets to see them."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Self

from ....protocols import BudgetExceeded, Capabilities, ConfigError, PermissionDenied, Prices, Sensitivity, Side, Unsupported
from ...routing.costs import RunningEstimates, TaskKind, TaskTaken
from ...routing.traces import AgentOutcome, Trace, agents_of
from ...task.modes import Mode, Strategy, tokens_by_length
from ...task.policy import Policy
from ...task.task import Task, as_messages

LEAST_TASKS: Final = 20
"""Tasks below which a replay says nothing."""
REFUSALS: Final = (PermissionDenied, BudgetExceeded, Unsupported)
"""With which the router turns a single task away; any other error speaks of the policy as a whole."""


@dataclass(frozen=True, slots=True)
class RecordedAgent:
    """An agent of which nothing is left but what it came to."""

    name: str
    side: Side
    capabilities: Capabilities | None = None
    prices: Prices | None = None


@dataclass(frozen=True, slots=True)
class Recording:
    """Tasks with what the agents of both sides came to."""

    cases: tuple[Trace, ...]
    """Tasks for which the score of every agent is known, with the outcomes of these agents alone."""
    incomplete: tuple[Trace, ...]
    """The others: a head can learn from them, and nothing can be judged on them."""
    sides: Mapping[str, Side]
    """Side of each agent, by name."""

    @classmethod
    def of(cls, traces: Sequence[Trace], sides: Mapping[str, Side]) -> Self:
        """Split traces into those that a replay can use and those that it cannot.

        Args:
            sides: side of each agent that takes part, by name; outcomes of other agents are ignored.

        Raises `ConfigError` for an agent without outcomes, a side without agents, and too few tasks that all agents were tried on.
        """
        _check_sides(sides, known=agents_of(traces))
        restricted = [_restricted(trace, sides) for trace in traces if not sides.keys().isdisjoint(trace.outcomes)]
        complete = [trace for trace in restricted if not _missing(trace, sides)]
        if len(complete) < LEAST_TASKS:
            raise _too_few(len(complete), restricted, sides)
        return cls(tuple(complete), tuple(trace for trace in restricted if _missing(trace, sides)), dict(sides))

    @property
    def agents(self) -> list[RecordedAgent]:
        return [RecordedAgent(name, side) for name, side in self.sides.items()]


def task_of(case: Trace, policy: Policy) -> Task:
    """Return the recorded task as an app would pass it."""
    return Task(messages=as_messages(case.prompt), task_class=case.task_class, policy=policy)


def with_router(policy: Policy, **changes: object) -> Policy:
    """Return the policy with other settings of its router."""
    return policy.model_copy(update={"router": policy.router.model_copy(update=changes)})


def freed(policy: Policy) -> Policy:
    """Return the policy with the choice between the sides left to the router."""
    return policy.model_copy(update={"strategy": Strategy.ROUTE, "mode": Mode.AUTO, "sensitivity": Sensitivity.PUBLIC})


def learn_costs(running: RunningEstimates, case: Trace, agents: Collection[str]) -> None:
    """Report what agents took for a task, as far as it was recorded. A recorded task counts as one step."""
    for agent in agents:
        running.add_task(agent, _taken(case, case.outcomes[agent]), kind=TaskKind(case.task_class, bool(case.tools)))


def _taken(case: Trace, outcome: AgentOutcome) -> TaskTaken:
    prompt_tokens = tokens_by_length(case.prompt)
    return TaskTaken(
        prompt_tokens=prompt_tokens,
        steps=1,
        input_tokens=prompt_tokens if outcome.input_tokens is None else outcome.input_tokens,
        cached_tokens=0,
        cache_write_tokens=0,
        # If the output tokens were not counted, the price is learned per input token.
        output_tokens=outcome.output_tokens or 0,
        seconds=outcome.seconds,
        dollars=outcome.dollars,
        joules=outcome.joules,
    )


def _check_sides(sides: Mapping[str, Side], *, known: Sequence[str]) -> None:
    for agent in sides:
        if agent not in known:
            raise ConfigError(f"the traces hold no outcome of {agent!r}", hint=f"they tell of {', '.join(known)}")
    for side in Side:
        if side not in sides.values():
            raise ConfigError(
                f"no {side} agent takes part", hint="a replay compares both sides: name an agent of each that the traces tell of"
            )


def _restricted(trace: Trace, sides: Mapping[str, Side]) -> Trace:
    return trace.model_copy(update={"outcomes": {agent: trace.outcomes[agent] for agent in sides if agent in trace.outcomes}})


def _missing(trace: Trace, sides: Mapping[str, Side]) -> list[str]:
    """Return the agents whose score is unknown."""
    return [agent for agent in sides if agent not in trace.outcomes or trace.outcomes[agent].score is None]


def _too_few(count: int, traces: Sequence[Trace], sides: Mapping[str, Side]) -> ConfigError:
    missing = [agent for trace in traces for agent in _missing(trace, sides)]
    shares = ", ".join(f"{agent} on {len(traces) - missing.count(agent):,}" for agent in sides)
    return ConfigError(
        f"the scores of all agents are known on {count:,} of {len(traces):,} tasks, and a replay needs {LEAST_TASKS} ({shares})",
        hint="run the same tasks with each agent and record the scores, or leave an agent out",
    )
