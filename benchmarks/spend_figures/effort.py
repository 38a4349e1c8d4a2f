"""How well an effort is kept that is a share of what is usual, what `auto` saves by choosing one for each class of tasks, and how often
what learns from its own choices gives up too early.

All are measured in scripted worlds: no thinking model is shipped and none of the recordings holds thoughts, so that nothing is said here of
the score at half the effort.
"""

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any, Final, NamedTuple, Protocol

from nearfar import Message, Policy, ScriptedAgent, Side, Strategy
from nearfar.orchestrator.agents import AgentHandle
from nearfar.orchestrator.routing import Router
from nearfar.orchestrator.routing.auto import Chooser
from nearfar.orchestrator.routing.habits import AgreementRates, Efforts, ReasonedStep, StepKind
from nearfar.orchestrator.routing.outcome_records import Outcome
from nearfar.orchestrator.routing.outcomes import OutcomeStore
from nearfar.orchestrator.task import Task
from nearfar.orchestrator.task.decisions import Arm
from nearfar.orchestrator.task.modes import TaskProfile
from nearfar.orchestrator.task.policy import AutoConfig
from nearfar.orchestrator.task.results import JudgedProposal
from nearfar.protocols import Effort, Prices, Sensitivity

_SEED: Final = 414_213
_SHARES: Final = (0.25, 0.5, 0.75)
_LEVEL_SHARES: Final = (0.5, 0.75, 1.25, 1.5)
_BEFORE, _AFTER = 30, 200
"""Tasks that do not count, and those that do."""
_LEVELS: Final[Mapping[Effort | None, float]] = {None: 1.0, Effort.LOW: 0.3, Effort.HIGH: 1.9}
_Draw = Callable[[random.Random], float]
_WORLDS: Final[Mapping[str, _Draw]] = {
    "lognormal": lambda chance: chance.lognormvariate(0, 0.6),
    "wide": lambda chance: chance.lognormvariate(0, 1.0),
    "even": lambda chance: chance.uniform(0.3, 1.7),
    "mixture": lambda chance: chance.gammavariate(4, 0.25) * (1 if chance.random() < 0.7 else 4),
}
"""Reasoning tokens over what is typical of the task, by the distribution; the last ones are not what is assumed of them."""


def figures(data: Path, *, quick: bool) -> dict[str, Any]:
    """Return the figures of efforts, and of early failure. `data` is not used."""
    return (
        _effort_figures(10 if quick else 60, 40 if quick else 120)
        | _mode_figures(10 if quick else 60)
        | _bandit_figures(10 if quick else 60)
    )


def _effort_figures(seeds: int, most: int) -> dict[str, Any]:
    """Return the mean error over many agents, and that of one. `most`: seeds of the world that reasoning is assumed to be like."""
    found: dict[str, Any] = {}
    for name, shares, can_limit in (("limit", _SHARES, True), ("level", _LEVEL_SHARES, False)):
        for world in _WORLDS:
            for share in shares:
                errors = [_error(world, share, seed, can_limit=can_limit) for seed in range(most if world == "lognormal" else seeds)]
                found[f"effort_{name}_{world}_{share:g}"] = fmean(errors)
                found[f"effort_{name}_{world}_{share:g}_one_agent"] = fmean(map(abs, errors))
    for name in ("limit", "level"):
        for world in _WORLDS:
            own = [abs(value) for key, value in found.items() if key.startswith(f"effort_{name}_{world}_") and "one" not in key]
            found[f"effort_error_{name}_{world}"] = max(own)
    found["effort_error"] = max(found[f"effort_error_{name}_lognormal"] for name in ("limit", "level"))
    return found


def _error(world: str, share: float, seed: int, *, can_limit: bool) -> float:
    """Return by how much the tokens of one agent are off the share of what the same tasks would have taken, relative to it."""
    efforts, used, usual = Efforts(), 0.0, 0.0
    for number, (kind, tokens) in enumerate(_tasks(world, random.Random(f"{_SEED} {world} {seed}"))):
        asked = efforts.ask(kind, share, can_limit=can_limit)
        taken = min(max(round(tokens * _LEVELS[asked.level]), 1), asked.most or 10**9)
        step = ReasonedStep(
            agent=kind.agent,
            side=kind.side,
            role=kind.role,
            task_class=kind.task_class,
            prompt_tokens=kind.prompt_tokens,
            tokens=taken,
            asked=asked,
        )
        efforts.learn(step)
        if number >= _BEFORE:
            used, usual = used + taken, usual + tokens
    return used / usual / share - 1


def _tasks(world: str, chance: random.Random) -> Iterator[tuple[StepKind, float]]:
    """Yield tasks of two classes with prompts of two lengths, and the tokens that each takes if nothing is asked."""
    for _ in range(_BEFORE + _AFTER):
        task_class, size = chance.choice(("sums", "plans")), chance.choice((200, 2000))
        typical = {"sums": 300.0, "plans": 1200.0}[task_class] * (1.6 if size == 2000 else 1.0)
        yield StepKind("thinker", Side.NEAR, "execute", task_class, size), typical * _WORLDS[world](chance)


class _Mode(NamedTuple):
    """How well a mode does the tasks of a class, and what it takes."""

    score: float
    dollars: float


_NO_EFFORT: Final = Arm(strategy=Strategy.CLOUD, knobs={"effort": "none"})
_USUAL: Final = Arm(strategy=Strategy.CLOUD)
_PROMPTS: Final = {"facts": "What is the capital of Peru?", "proofs": "Prove that the sum of two odd numbers is even."}
_MODES: Final[Mapping[str, Mapping[str, _Mode]]] = {
    "facts": {_NO_EFFORT.key: _Mode(0.92, 0.002), _USUAL.key: _Mode(0.92, 0.02)},
    "proofs": {_NO_EFFORT.key: _Mode(0.4, 0.002), _USUAL.key: _Mode(0.9, 0.03)},
}
"""Set by hand: what matters here is whether the better mode of each class is found, and what finding it costs."""


def _mode_figures(seeds: int) -> dict[str, float]:
    """Return the cost of pass, dollars over right answers (arXiv 2510.12838), and the score with one mode alone and with both."""
    ways = {"none": [_NO_EFFORT], "usual": [_USUAL], "both": [_USUAL, _NO_EFFORT]}
    found = {name: [_mode_run(arms, seed) for seed in range(seeds)] for name, arms in ways.items()}
    costs = {f"modes_{name}_cost_of_pass": fmean(each.dollars / each.score for each in runs) for name, runs in found.items()}
    return costs | {f"modes_{name}_score": fmean(each.score for each in runs) for name, runs in found.items()}


def _mode_run(arms: Sequence[Arm], seed: int) -> _Mode:
    chance, store = random.Random(f"{_SEED} modes {seed}"), OutcomeStore()
    for arm in arms:
        store.offer(arm)
    chooser = Chooser(AutoConfig(explore_share=0.1), store, has_defaults=False, seed=seed)
    score = dollars = 0.0
    for _ in range(_ROUNDS):
        task_class = chance.choice(list(_MODES))
        profile = TaskProfile.of(_PROMPTS[task_class], ())
        arm = chooser.choose(profile, Policy(sensitivity=Sensitivity.PUBLIC)).chosen
        mode = _MODES[task_class][arm.key]
        right = float(chance.random() < mode.score)
        store.add(Outcome(task_class=task_class, profile=profile, arm=arm, score=right, dollars=mode.dollars))
        score, dollars = score + right, dollars + mode.dollars
    return _Mode(score / _ROUNDS, dollars / _ROUNDS)


_ROUNDS: Final = 300
"""Tasks, or choices, of one run."""


class _Player(Protocol):
    """Something that learns from its own choices."""

    def choose(self) -> str: ...

    def learn(self, arm: str, *, success: bool) -> None: ...


class _Play(NamedTuple):
    """One run of a player, by the measures of early failure of arXiv 2403.15371."""

    failed: bool
    """The best arm was not chosen once in the second half."""
    stuck: bool
    """It was not chosen in half of the last quarter."""
    greedy: float
    """Share of the choices that were for the arm with the best mean so far."""
    regret: float
    """Worth lost per choice, over that of the worst arm."""


class _Auto:
    """`auto` over four configurations."""

    def __init__(self, seed: int, share: float) -> None:
        self._arms = {name: Arm(strategy=Strategy(name)) for name in _AUTO_ARMS}
        self._store = OutcomeStore()
        for arm in self._arms.values():
            self._store.offer(arm)
        self._chooser = Chooser(AutoConfig(explore_share=share), self._store, has_defaults=False, seed=seed)
        self._profile = TaskProfile.of("What is the capital of Peru?", ())

    def choose(self) -> str:
        return self._chooser.choose(self._profile, Policy(sensitivity=Sensitivity.PUBLIC)).chosen.key

    def learn(self, arm: str, *, success: bool) -> None:
        self._store.add(Outcome(task_class="towns", profile=self._profile, arm=self._arms[arm], score=success, dollars=0.0))


class _Routed:
    """The router over one near and one far agent, whose answers are reported."""

    def __init__(self, seed: int, strategy: str, share: float) -> None:
        router = {"explore_share": share}
        policy = Policy.model_validate({"strategy": strategy, "sensitivity": "public", "router": router})
        self._task = Task(messages=(Message.user("What is the capital of Peru?"),), policy=policy)
        self._router = Router(seed=seed)
        self._agents = [AgentHandle(side.value, side, _agent(side)) for side in Side]

    def choose(self) -> str:
        self._decision = self._router.decide(self._task, self._agents)
        return self._decision.candidates[0]

    def learn(self, arm: str, *, success: bool) -> None:
        self._router.learn(self._task, self._decision, arm, score=float(success))


def _agent(side: Side) -> ScriptedAgent:
    return ScriptedAgent([], name=side.value, side=side, prices=Prices.free("scripted"))


class _Ahead:
    """The look-ahead of `speculate`: near always proposes, and far is asked ahead where that pays. Its first step takes long."""

    def __init__(self, seed: int, loading: float) -> None:
        self._rates = AgreementRates()
        self._seconds = loading

    def choose(self) -> str:
        self._rates.time(Side.FAR, 1.0)
        self._rates.time(Side.NEAR, self._seconds)
        self._seconds = 0.1
        return "ahead" if self._rates.odds((_PROPOSAL,)) >= self._rates.least_odds(_THRIFT) else "propose"

    def learn(self, arm: str, *, success: bool) -> None:
        self._rates.learn(_PROPOSAL.model_copy(update={"confirmed": success}))


_THRIFT: Final = 0.4
_PROPOSAL: Final = JudgedProposal(task_class="towns")
_AUTO_ARMS: Final[Mapping[str, float]] = {"cascade": 0.5, "device": 0.5, "pevr": 0.5, "cloud": 0.75}
_ROUTE_ARMS: Final[Mapping[str, float]] = {"near": 0.55, "far": 0.8}
_NEAR_ARMS: Final[Mapping[str, float]] = {"near": 0.8, "far": 0.55}
_AHEAD_ARMS: Final[Mapping[str, float]] = {"propose": 0.0, "ahead": 0.7}
_PLAYERS: Final[Mapping[str, tuple[Callable[[int], _Player], Mapping[str, float]]]] = {
    "auto_0": (lambda seed: _Auto(seed, 0.0), _AUTO_ARMS),
    "auto_5": (lambda seed: _Auto(seed, 0.05), _AUTO_ARMS),
    "auto_20": (lambda seed: _Auto(seed, 0.2), _AUTO_ARMS),
    "route_0_far": (lambda seed: _Routed(seed, "route", 0.0), _ROUTE_ARMS),
    "route_5_far": (lambda seed: _Routed(seed, "route", 0.05), _ROUTE_ARMS),
    "route_0_near": (lambda seed: _Routed(seed, "route", 0.0), _NEAR_ARMS),
    "route_5_near": (lambda seed: _Routed(seed, "route", 0.05), _NEAR_ARMS),
    "cascade_near": (lambda seed: _Routed(seed, "cascade", 0.05), _NEAR_ARMS),
    "speculate": (lambda seed: _Ahead(seed, 0.1), _AHEAD_ARMS),
    "speculate_loading": (lambda seed: _Ahead(seed, 10.0), _AHEAD_ARMS),
}


def _bandit_figures(seeds: int) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, (make, arms) in _PLAYERS.items():
        plays = [_play(make(seed), arms, random.Random(f"{_SEED} {name} {seed}")) for seed in range(seeds)]
        found[f"bandit_{name}_failed"] = fmean(play.failed for play in plays)
        found[f"bandit_{name}_stuck"] = fmean(play.stuck for play in plays)
        found[f"bandit_{name}_greedy"] = fmean(play.greedy for play in plays)
        found[f"bandit_{name}_worst_regret"] = max(play.regret for play in plays)
    return found


def _play(player: _Player, arms: Mapping[str, float], chance: random.Random) -> _Play:
    best, worst = max(arms, key=arms.__getitem__), min(arms.values())
    tried, won = dict.fromkeys(arms, 0), dict.fromkeys(arms, 0)
    chosen, greedy = list[str](), 0
    for _ in range(_ROUNDS):
        arm = player.choose()
        means = {name: won[name] / tried[name] for name in arms if tried[name]}
        greedy += bool(means) and means.get(arm, -1.0) >= max(means.values())
        success = chance.random() < (arms[arm] or arms[best])
        player.learn(arm, success=success)
        tried[arm] += 1
        won[arm] += success
        chosen.append(arm)
    regret = fmean(arms[best] - arms[arm] for arm in chosen) / (arms[best] - worst)
    late = chosen[-_ROUNDS // 4 :]
    return _Play(best not in chosen[_ROUNDS // 2 :], 2 * late.count(best) < len(late), greedy / _ROUNDS, regret)
