"""Running single tasks of a study: one process's agents, worlds and `Hybrid`s, and the record of each run with what it cost.

* Dollars: the far side's tokens at its own price; where that is unknown or 0, at the reference price of `cloud/prices.toml`. At the
  reference price every prompt token counts in full: providers grant a discount for cached prefixes from 1,024 tokens on, which few
  prompts here reach.
* Joules: 2 x parameters x tokens / efficiency (arXiv 2605.30102, appendix A.1), for the near side; far energy is not counted.
* KV bytes: the largest context that the near side held, times what its model keeps per token.
"""

import logging
import time
from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from contextlib import AsyncExitStack, aclosing, closing
from dataclasses import dataclass, field
from functools import partial
from types import TracebackType
from typing import Final, Literal, Self

from ....protocols import Agent, AgentCard, ConfigError, NearfarError, Prices, Side, Usage
from ....protocols.steps import Value
from ...compose import far_handle, near_handle, reference_price
from ...hybrid import Hybrid
from ...routing.outcome_records import Check, RunRecord
from ...task.events import CallEnded, Navigated, TaskEvent, TaskFinished
from ...task.policy import Verdict
from ...task.results import Call
from ..worlds import Episode, Grade, SolvableWorld, World, WorldTask
from ..worlds.loading import draw_tasks, open_factory, open_world
from . import Configuration, Study

logger = logging.getLogger(__name__)
Serve = Callable[..., AsyncGenerator[TaskEvent, None]]
"""Streams a task: `Hybrid.stream` with its policy."""
EXECUTE: Final = "execute"
"""The role of the agent that works on the task, in every strategy."""
FLOP_PER_JOULE: Final = 1e11
"""Efficiency of the near side's processor: about half of what a laptop GPU of 2024 reaches at its best. It scales all joules alike, so
comparisons between configurations do not depend on it."""


class Item(Value):
    """One run to be made: a task of a world under a configuration."""

    world: str
    """Name of the world in the study."""
    seed: int
    index: int
    """Index of the task among those drawn with the seed."""
    configuration: str
    """A label of the study."""


@dataclass(slots=True)
class Course:
    """The state of a run while it is under way, so that it can be recorded however it ends."""

    listen: Callable[[TaskEvent], None] = lambda event: None
    """Called with each event of the task."""
    calls: list[Call] = field(default_factory=list)
    moves: list[Navigated] = field(default_factory=list)
    answer: str = ""
    seconds: float = 0.0
    tools: tuple[str, ...] = ()
    error: str | None = None
    grade: Grade = Grade(success=False, score=0)


class Workbench:
    """The agents of one process and the worlds that they work in; an async context manager that closes the agents it opened."""

    def __init__(self, study: Study) -> None:
        self._study = study
        self._configurations = {configuration.label: configuration for configuration in study.configurations}
        model, prices = reference_price()
        self._reference = ReferencePrice(model=model, prices=prices)
        self._worlds: dict[str, World] = {}
        self._tasks: dict[tuple[str, int], Sequence[WorldTask]] = {}
        self._hybrids: dict[str, Hybrid] = {}
        self._near: Agent | None = None
        self._far: Agent | None = None
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Self:
        """Open the agents that the study needs. Raises what opening raises."""
        async with AsyncExitStack() as stack:
            if self._study.agents is not None:
                self._near, self._far = self._users_agents(stack, self._study.agents)
            else:
                self._near = await self._open_side(stack, Side.NEAR) if self._study.needs_near else None
                self._far = await self._open_side(stack, Side.FAR) if self._study.needs_far else None
            self._stack = stack.pop_all()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        await self._stack.aclose()

    async def run(self, item: Item, listen: Callable[[TaskEvent], None] | None = None) -> RunRecord:
        """Make one run and call `listen` with its events. Whatever fails in it, in agents or world, becomes part of its record."""
        configuration = self._configurations[item.configuration]
        task = self._task(item)
        hybrid = self._hybrid(item, configuration)
        course = Course() if listen is None else Course(listen)
        try:
            episode = self._world(item.world).reset(task)
        except Exception as error:  # a task boundary: the world may be the user's own program
            course.error = _describe(error, "the world could not start over on the task", task)
        else:
            await self._work(partial(hybrid.stream, policy=configuration.policy), task, episode, course)
        return self._record(item, task, configuration, course)

    async def _work(self, stream: Serve, task: WorldTask, episode: Episode, course: Course) -> None:
        try:
            with closing(episode):
                await self._serve(stream, task, episode, course)
                _grade(episode, task, course)
        except Exception as error:  # a task boundary, as above
            course.error = _describe(error, "the episode could not be closed", task)

    async def _serve(self, stream: Serve, task: WorldTask, episode: Episode, course: Course) -> None:
        """Let the agents work on the task; where they fail, what their tools did still stands to be graded."""
        course.tools = tuple(tool.name for tool in episode.tools)
        started = time.monotonic()
        try:
            given = {"context": task.context} if task.context is not None else {}
            async with aclosing(stream(task.prompt, tools=episode.tools, timeout=self._study.timeout, **given)) as events:
                async for event in events:
                    course.listen(event)
                    if isinstance(event, CallEnded):
                        course.calls.append(event.call)
                    elif isinstance(event, Navigated):
                        course.moves.append(event)
                    elif isinstance(event, TaskFinished):
                        course.answer = event.result.text
        except NearfarError as error:
            course.error = f"{type(error).__name__}: {error.message}"
        except Exception as error:  # a task boundary: an agent may be the user's own program
            course.error = _describe(error, "an agent or a tool broke", task)
        finally:
            course.seconds = time.monotonic() - started

    def _record(self, item: Item, task: WorldTask, configuration: Configuration, course: Course) -> RunRecord:
        calls = course.calls
        near, far = ([call for call in calls if call.side is side] for side in Side)
        near_usage = sum((call.usage for call in near), Usage())
        near_card, far_card = (_card(agent) for agent in (self._near, None if configuration.oracle else self._far))
        spent, source = dollars(calls, far_card, self._reference)
        energy = joules(near_usage, near_card.parameters if near_card else None)
        checks = tuple(
            Check(turn=call.turn, trigger=call.trigger, verdict=_word(call.verdict)) for call in calls if call.trigger is not None
        )
        acted = [call for call in calls if call.verdict is Verdict.INTERVENE and not call.shadow]
        return new_record(
            item,
            task,
            configuration,
            course,
            near_model=near[0].model if near else None,
            far_model=far[0].model if far else None,
            turns=sum(call.role == EXECUTE for call in calls),
            near_calls=len(near),
            far_calls=len(far),
            near_usage=near_usage,
            far_usage=sum((call.usage for call in far), Usage()),
            dollars=spent,
            dollars_source=source,
            joules=energy,
            joules_source="unavailable" if energy is None else "estimated",
            peak_kv_bytes=peak_kv_bytes(calls, near_card.kv_bytes_per_token if near_card else None),
            context_tokens=context_tokens(calls),
            checks=checks,
            moves=tuple(course.moves),
            interventions=len(acted),
        )

    def _world(self, name: str) -> World:
        if name not in self._worlds:
            self._worlds[name] = open_world(name)
        return self._worlds[name]

    def _task(self, item: Item) -> WorldTask:
        drawn = (item.world, item.seed)
        if drawn not in self._tasks:
            self._tasks[drawn] = draw_tasks(self._world(item.world), self._study.tasks, item.seed)
        return self._tasks[drawn][item.index]

    def _hybrid(self, item: Item, configuration: Configuration) -> Hybrid:
        """Return the `Hybrid` over the agents of the study, or the one of the world whose oracle supervises."""
        key = item.world if configuration.oracle else ""
        if key not in self._hybrids:
            far = _oracle(self._world(item.world)) if configuration.oracle else self._far
            self._hybrids[key] = Hybrid(near=self._near, far=far)
        return self._hybrids[key]

    async def _open_side(self, stack: AsyncExitStack, side: Side) -> Agent:
        member = near_handle(self._study.near) if side is Side.NEAR else far_handle(self._study.far)
        if member is None:
            raise ConfigError(f"the sweep needs a {side} agent and none is configured", hint=f"--{side} MODEL, or [{side}] in nearfar.toml")
        stack.push_async_callback(member.aclose)
        return await member.open()

    def _users_agents(self, stack: AsyncExitStack, factory: str) -> tuple[Agent | None, Agent | None]:
        pair = open_factory(factory, "the factory of agents")
        if not isinstance(pair, tuple) or len(pair) != 2 or not all(agent is None or isinstance(agent, Agent) for agent in pair):
            raise ConfigError(
                f"{factory} makes {pair!r} and not a near and a far agent", hint="return (near, far); None for a side left out"
            )
        near, far = pair
        for agent in (near, far):
            if agent is not None:
                stack.push_async_callback(agent.aclose)
        return near, far


def new_record(item: Item, task: WorldTask, configuration: Configuration, course: Course, **figures: object) -> RunRecord:
    """Make the record of a run with its figures."""
    run = {"world": item.world, "task": task.identifier, "seed": item.seed}
    described = {
        **run,
        "key": configuration.key(world=item.world, task=task.identifier, seed=item.seed),
        "prompt": task.prompt,
        "context_words": len((task.context or "").split()),
        "tools": course.tools,
        "kind": task.kind,
        "difficulty": task.difficulty,
        "configuration": configuration.label,
        "strategy": configuration.strategy,
        "knobs": configuration.knobs,
        "oracle": configuration.oracle,
        "answer": course.answer,
        "error": course.error,
        "success": course.grade.success,
        "score": course.grade.score,
        "measures": dict(course.grade.measures),
        "seconds": course.seconds,
    }
    return RunRecord.model_validate({**described, **figures})


def failed_record(item: Item, task: WorldTask, configuration: Configuration, error: str) -> RunRecord:
    """Make the record of a run that was lost with its process; its costs are unknown."""
    unknown = {"dollars": None, "dollars_source": "unknown", "joules": None, "joules_source": "unavailable", "peak_kv_bytes": None}
    no_agents = {"near_model": None, "far_model": None, "turns": 0, "near_calls": 0, "far_calls": 0}
    return new_record(item, task, configuration, Course(error=error), **unknown, **no_agents)


def _grade(episode: Episode, task: WorldTask, course: Course) -> None:
    try:
        course.grade = Grade.model_validate(episode.grade(course.answer))
    except Exception as error:  # a task boundary: the world may be the user's own program
        course.error = _describe(error, "the outcome could not be graded", task)


def _oracle(world: World) -> Agent:
    if not isinstance(world, SolvableWorld):
        raise ConfigError(f"world {world.name!r} has no oracle", hint="leave out the configurations with +oracle, or give it oracle()")
    return world.oracle()


def _word(verdict: Verdict | None) -> Literal["continue", "intervene", "unreadable"] | None:
    return verdict.value if verdict is not None else None


def _card(agent: Agent | None) -> AgentCard | None:
    return agent.card if agent is not None else None


def _describe(error: Exception, what: str, task: WorldTask) -> str:
    if not isinstance(error, NearfarError):
        logger.exception("task %s: %s", task.identifier, what)
    return f"{type(error).__name__}: {what}: {error}"


class ReferencePrice(Value):
    """The price of a real model, for far agents that have none or cost nothing."""

    model: str
    prices: Prices

    @property
    def name(self) -> str:
        return f"list price of {self.model}, {self.prices.as_of}"


def dollars(calls: Iterable[Call], card: AgentCard | None, reference: ReferencePrice) -> tuple[float | None, str]:
    """Return the far side's dollars and the source of the price; None where a call failed after it had spent uncounted tokens."""
    far = [call for call in calls if call.side is Side.FAR]
    if card is not None and card.prices is not None and not card.prices.is_free:
        known = [call.dollars for call in far if call.dollars is not None]
        total = float(sum(known)) if len(known) == len(far) else None
        return total, f"{card.prices.source}, {card.prices.as_of}"
    if any(call.dollars is None and call.error is not None and call.usage.total_tokens == 0 for call in far):
        return None, reference.name
    usages = (Usage(input_tokens=call.usage.input_tokens, output_tokens=call.usage.output_tokens) for call in far)
    return float(sum(reference.prices.dollars(usage) for usage in usages)), reference.name


def joules(usage: Usage, parameters: int | None) -> float | None:
    """Estimate the energy of the near side; None if the number of weights is unknown. Tokens read from a prefix cache count too."""
    if usage.total_tokens == 0:
        return 0.0
    return None if parameters is None else 2 * parameters * usage.total_tokens / FLOP_PER_JOULE


def peak_kv_bytes(calls: Sequence[Call], bytes_per_token: int | None) -> int | None:
    """Return the KV cache of the near side's longest call; None if its model does not say what it keeps per token."""
    near = [call.usage.total_tokens for call in calls if call.side is Side.NEAR]
    if not near:
        return 0
    return None if bytes_per_token is None else max(near) * bytes_per_token


def context_tokens(calls: Iterable[Call]) -> tuple[int, ...]:
    """Return the tokens that the executor read and wrote on each turn."""
    return tuple(call.usage.total_tokens for call in calls if call.role == EXECUTE)
