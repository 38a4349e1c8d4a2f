"""Runs made on Ray: one actor for each process that a local sweep would have, with the same agents and the same runs."""

import asyncio
import os
from collections.abc import Awaitable
from contextlib import AsyncExitStack
from types import TracebackType
from typing import Any, Self, cast

import anyio

from ....protocols import ConfigError, DeadlineExceeded, NearfarError, Unavailable, WorkerCrashed
from ...routing.traces import RunRecord
from .pools import as_error
from .study import Study
from .workbench import Item, Workbench
from .worker import Json, answer_of, error_as_json

_ADDRESS = "RAY_ADDRESS"
"""The environment variable that names a cluster."""
_START_SECONDS = 300.0
"""Loading a large model from a slow disk, and starting a gateway, take this long at most; so does waiting for room on the cluster."""
_STOP_SECONDS = 10.0
_GRACE_SECONDS = 60.0
"""Beyond a run's own time limit, for the world to start over and to grade."""


class SweepActor:
    """One process on the cluster. Errors travel as JSON, since Ray would rather pickle them."""

    def __init__(self, study: str) -> None:
        self._workbench = Workbench(Study.model_validate_json(study))
        self._opening = anyio.Lock()
        self._is_open = False

    async def open(self) -> Json:
        """Open the agents, unless they are."""
        async with self._opening:
            if not self._is_open:
                try:
                    await self._workbench.__aenter__()
                except NearfarError as error:
                    return error_as_json(error)
                self._is_open = True
            return {}

    async def run(self, item: Json) -> Json:
        """Make one run; an actor that took another one's place opens its agents first."""
        problem = await self.open()
        return problem or await answer_of(self._workbench, item)

    async def aclose(self) -> None:
        """Close the agents."""
        if self._is_open:
            await self._workbench.__aexit__(None, None, None)


class RayPool:
    """Actors on the Ray cluster that RAY_ADDRESS names, else on a Ray of this machine, on loopback, that ends with the sweep.

    Raises `ConfigError` where Ray is not installed.
    """

    def __init__(self, study: Study) -> None:
        self._ray = _ray()
        self._study = study
        self._actors: list[Any] = []
        self._busy: list[int] = []
        self._was_running = False

    @property
    def capacity(self) -> int:
        return self._study.jobs * self._study.concurrency

    async def run(self, item: Item) -> RunRecord:
        """Make one run on the least busy actor."""
        index = min(range(len(self._actors)), key=self._busy.__getitem__)
        actor = self._actors[index]
        self._busy[index] += 1
        try:
            running = actor.run.remote(item.model_dump(mode="json"))
            answer = await self._answer(running, self._study.timeout + _GRACE_SECONDS)
        except (DeadlineExceeded, WorkerCrashed) as error:
            if self._actors[index] is actor:  # another run of it may have come first
                self._ray.kill(actor)
                self._actors[index] = self._new_actor()
            raise WorkerCrashed(error.message) from error
        finally:
            self._busy[index] -= 1
        if "error" in answer:
            raise as_error(answer)
        return RunRecord.model_validate(answer["record"])

    async def __aenter__(self) -> Self:
        """Start the actors. Raises what opening their agents raises, `Unavailable` where the cluster has no room."""
        self._was_running = self._ray.is_initialized()
        if not self._was_running:
            os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
            self._ray.init(None if _ADDRESS in os.environ else "local", include_dashboard=False, configure_logging=False)
        self._actors = [self._new_actor() for _ in range(self._study.jobs)]
        self._busy = [0] * len(self._actors)
        async with AsyncExitStack() as stack:
            stack.push_async_exit(self.__aexit__)
            try:
                problems = await asyncio.gather(*(self._answer(actor.open.remote(), _START_SECONDS) for actor in self._actors))
            except DeadlineExceeded as error:
                raise Unavailable(error.message, hint="has the cluster a free CPU for each job?") from None
            for problem in filter(None, problems):
                raise as_error(problem)
            stack.pop_all()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        with anyio.CancelScope(shield=True):
            with anyio.move_on_after(_STOP_SECONDS):
                await asyncio.gather(*(_finished(actor.aclose.remote()) for actor in self._actors), return_exceptions=True)
            for actor in self._actors:
                self._ray.kill(actor)
            if not self._was_running:
                self._ray.shutdown()

    def _new_actor(self) -> Any:  # noqa: ANN401 - a handle without a type
        kind = self._ray.remote(SweepActor).options(num_cpus=1, max_concurrency=self._study.concurrency)
        return kind.remote(self._study.model_dump_json())

    async def _answer(self, running: object, seconds: float) -> Json:
        """Raises `WorkerCrashed` where the actor died, `DeadlineExceeded` where it is silent."""
        try:
            with anyio.fail_after(seconds):
                return cast(Json, await _finished(running))
        except TimeoutError:
            raise DeadlineExceeded(f"an actor on Ray did not answer within {seconds:g} s") from None
        except self._ray.exceptions.RayError as error:
            raise WorkerCrashed(f"an actor on Ray died: {type(error).__name__}") from error


async def _finished(running: object) -> object:
    return await cast(Awaitable[object], running)


def _ray() -> Any:  # noqa: ANN401 - a module that is there only with an extra
    if _ADDRESS not in os.environ:
        # Ray reads this when it is imported. For all its name, it makes a Ray of one machine listen on loopback alone, also on Linux.
        os.environ.setdefault("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")
    try:
        import ray
        import ray.exceptions
    except ImportError as error:
        raise ConfigError("--ray needs Ray", hint="pip install 'nearfar[ray]', or leave --ray out") from error
    return ray
