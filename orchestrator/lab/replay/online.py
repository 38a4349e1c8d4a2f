"""The recorded tasks as a stream: the router holds a budget over it, and learns from what the agent came to that it asked."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Final

from ....protocols import Side
from ....protocols.messages import Value
from ...routing.budget import TOLERANCE
from ...routing.router import Router
from ...task.policy import Policy
from .held_out import Part
from .recording import REFUSALS, Recording, freed, learn_costs, task_of, with_router

_WINDOW: Final = 500
"""Window of the running share: the one over which the controller holds it; a short stream has a shorter one."""
_SHORTEST_WINDOW: Final = 50
_WINDOWS: Final = 5
"""In a short stream."""


class Online(Value):
    """How a budget held over the stream. Tasks that the policy refuses are not part of it."""

    target: float
    """Share of tasks that were to go far."""
    far_share: float
    """Share of tasks that went far."""
    window: int
    """Tasks over which the running share is taken."""
    running: tuple[float, ...]
    """Share of the last `window` tasks that went far, after each task from the end of the first window on."""
    score: float
    """Mean over the tasks."""
    chosen: tuple[str, ...]
    """Whom each task went to first."""

    @property
    def tolerance(self) -> float:
        """How far a running share may be from the target: as many tasks in each window as in the controller's."""
        return TOLERANCE * _WINDOW / self.window

    @property
    def worst_miss(self) -> float:
        """The largest distance of a running share from the target."""
        return max(abs(share - self.target) for share in self.running)


@dataclass(slots=True)
class _Stream:
    router: Router
    recording: Recording
    policies: Sequence[Policy]
    """For each task, with a head that has not seen it."""

    def served(self, place: int) -> str | None:
        """Serve a task: return the agent that it goes to first, and let the router learn from it. None if it is refused."""
        case = self.recording.cases[place]
        try:
            task = self.router.apply_rules(task_of(case, self.policies[place]), tools=case.tools)
            decision = self.router.decide(task, self.recording.agents, tools=case.tools)
        except REFUSALS:
            return None
        agent = decision.candidates[0]
        score = case.outcomes[agent].score
        if score is not None:
            self.router.learn(task, decision, agent, score=score)
        learn_costs(self.router.running, case, [agent])
        return agent


def stream(recording: Recording, parts: Sequence[Part], policy: Policy, *, far_share: float, seed: int) -> Online | None:
    """Serve the tasks one after the other as they were recorded, holding a share of far tasks. None where each of them is refused.

    What agents take is learned on the way, as are corrections of the predictions, as far as the policy wants that. The
    choice between the sides is the router's, whatever strategy the policy has. Raises `ConfigError` for a share outside 0 to 1.
    """
    heads = {place: part.head for part in parts for place in part.places}
    changes = {"far_share": far_share, "dollars_per_hour": None, "shadow": False, "log": None}
    policies = [with_router(freed(policy), head=heads[place], **changes) for place in range(len(recording.cases))]
    served = _Stream(Router(seed=seed), recording, policies)
    chosen = {place: agent for place in range(len(recording.cases)) if (agent := served.served(place)) is not None}
    if not chosen:
        return None
    went_far = [recording.sides[agent] is Side.FAR for agent in chosen.values()]
    window = min(len(went_far), max(_SHORTEST_WINDOW, min(_WINDOW, len(went_far) // _WINDOWS)))
    scores = [recording.cases[place].outcomes[agent].score or 0.0 for place, agent in chosen.items()]
    return Online(
        target=far_share,
        far_share=sum(went_far) / len(went_far),
        window=window,
        running=_running(went_far, window),
        score=sum(scores) / len(scores),
        chosen=tuple(chosen.values()),
    )


def _running(went_far: Sequence[bool], window: int) -> tuple[float, ...]:
    sums = list(accumulate(went_far, initial=0))
    return tuple((end - start) / window for start, end in zip(sums, sums[window:], strict=False))
