"""How soon runs end if the worker prefers follow-up turns whose prefix is still cached, compared with the order of arrival.

16 conversations of tau-bench (airline) go on at once, over 4 sequences: their calls are the turns, and what was said in between, cut to
200 characters, arrives after a pause, as results of tools do. Tokens are the recorded ones; far.gguf, in full with 115M parameters,
computes every pass on one thread. Its processor time is the clock, so that a busy machine changes nothing.

`admission_completion`: mean time until a run's end / that of the order of arrival. `admission_hits`: share of prompts found in the cache,
in addition. `admission_worst_wait`: the longest time that a run spent in the queue, all its turns together, / the order of arrival's.
`admission_worst_turn`: the same of one turn.
"""

import random
import tempfile
import time
from collections import defaultdict
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

from benchmarks.drafting_figures.engine import MODELS, Engine, enlarged
from benchmarks.drafting_figures.recorded_calls import recorded_runs
from benchmarks.drafting_figures.rehearsal import Added, OrderOfArrival, Recording, Script, Scripts
from nearfar.device.hardware.processors import Threads
from nearfar.device.llama.model import LlamaContext, start_backend
from nearfar.device.worker.admission import StepAdmission
from nearfar.device.worker.engine import Sequences
from nearfar.device.worker.protocol import StepEventKind
from nearfar.device.worker.scheduler import Scheduler, StepState

RUNS: Final = 16
SEQUENCES: Final = 4
CONTEXT: Final = 1024
TURNS, QUICK_TURNS = 6, 3
SAID: Final = 200
LONGEST_PAUSE: Final = 0.2
"""Seconds between a turn's end and the next one's arrival; a tenth of that with the small model, whose passes are as much shorter."""
SEED: Final = 11


class Reading(Recording):
    """Computes the prompts, too."""

    capacity = 512

    def __init__(self, size: int, computed: LlamaContext) -> None:
        super().__init__(size, sequences=SEQUENCES, computed=computed)
        self._context = computed
        self.cells = computed.cells
        self.seconds = 0.0
        """Processor time of the last pass."""

    def decode(self) -> bool:
        begin = time.thread_time()
        has_room = super().decode()
        self.seconds = time.thread_time() - begin
        return has_room

    def _to_compute(self) -> list[Added]:
        return self._added

    def forget(self, sequence: int, start: int) -> bool:
        return super().forget(sequence, start) and self._context.forget(sequence, start)

    def share(self, source: int, target: int, end: int) -> bool:
        return super().share(source, target, end) and self._context.share(source, target, end)


class Undisturbed(Scheduler):
    """Takes passes for as long as their processor time."""

    def _adapt_chunk(self, seconds: float) -> None:
        del seconds
        context: Any = self._context
        super()._adapt_chunk(context.seconds)


class Watched(StepAdmission):
    """Keeps how long each step waited."""

    def __init__(self, sequences: Sequences, clock: "Clock") -> None:
        super().__init__(sequences, clock=clock.read)
        self._arrived: dict[int, float] = {}
        self.waits: dict[int, float] = {}

    def add(self, step: StepState) -> None:
        super().add(step)
        self._arrived[step.identifier] = self._clock()

    def next(self, *, engine_is_idle: bool) -> StepState | None:
        step = super().next(engine_is_idle=engine_is_idle)
        if step is not None:
            self.waits[step.identifier] = self._clock() - self._arrived[step.identifier]
        return step


class WatchedArrival(OrderOfArrival, Watched):
    """The order of arrival."""


class Clock:
    """Processor time of this thread, without what is not the scheduler's, and with pauses in which it has nothing to do."""

    def __init__(self) -> None:
        self._seconds = 0.0
        self._resumed: float | None = None

    def read(self) -> float:
        return self._seconds + (0.0 if self._resumed is None else time.thread_time() - self._resumed)

    def resume(self) -> None:
        self._resumed = time.thread_time()

    def stop(self) -> None:
        self._seconds, self._resumed = self.read(), None

    def skip_to(self, seconds: float) -> None:
        self._seconds = max(self._seconds, seconds)


class Runs:
    """Runs that go on at once on one scheduler."""

    def __init__(self, engine: Engine, runs: Sequence[Sequence[Script]], order: type[Watched], *, longest_pause: float) -> None:
        self._runs = runs
        self._longest_pause = longest_pause
        self._clock = Clock()
        recording = Reading(engine.model.vocabulary.size, engine.context(SEQUENCES, CONTEXT))
        self._load = recording.load
        context: Any = recording
        self._scheduler = Undisturbed(
            engine.model, context, context_tokens=CONTEXT, parallel=SEQUENCES, admission=partial(self._watched, order)
        )
        self._pauses = random.Random(SEED)
        self._arrivals = [(0.0, number, 0) for number in range(len(runs))]
        self._turns: dict[int, Script] = {}
        self.completion: list[float] = []
        self.read = self.cached = 0

    def _watched(self, order: type[Watched], sequences: Sequences) -> Watched:
        self._admission = order(sequences, self._clock)
        return self._admission

    def serve(self) -> None:
        """Serve all turns of all runs."""
        while self._arrivals or self._scheduler.busy:
            self._arrive()
            self._clock.resume()
            happened = self._scheduler.round()
            self._clock.stop()
            for identifier, kind, payload in happened:
                if kind is StepEventKind.ERROR:
                    raise RuntimeError(f"a call could not be written: {payload}")
                if kind is StepEventKind.FINISHED:
                    self._end_turn(identifier, payload)

    def _arrive(self) -> None:
        if not self._scheduler.busy:
            self._clock.skip_to(min(self._arrivals)[0])
        now = self._clock.read()
        for arrival in sorted(self._arrivals):
            if arrival[0] <= now:
                self._arrivals.remove(arrival)
                _, run, turn = arrival
                self._turns[run] = self._runs[run][turn]
                self._load(self._turns.values())
                self._scheduler.submit(turn * RUNS + run, self._turns[run].request, None)

    def _end_turn(self, identifier: int, payload: Any) -> None:  # noqa: ANN401 - JSON
        turn, run = divmod(identifier, RUNS)
        self.read += payload["input_tokens"]
        self.cached += payload["cached_tokens"]
        now = self._clock.read()
        if turn + 1 < len(self._runs[run]):
            self._arrivals.append((now + self._longest_pause * self._pauses.uniform(0.025, 1), run, turn + 1))
        else:
            self.completion.append(now)

    @property
    def waits(self) -> list[float]:
        """The time of each run in the queue."""
        waited: defaultdict[int, float] = defaultdict(float)
        for identifier, seconds in self._admission.waits.items():
            waited[identifier % RUNS] += seconds
        return list(waited.values())

    @property
    def longest_turn(self) -> float:
        return max(self._admission.waits.values())


def figures(data: Path, *, quick: bool) -> dict[str, object]:
    """All figures."""
    start_backend()
    with tempfile.TemporaryDirectory() as folder:
        engine = Engine(MODELS / "far.gguf" if quick else enlarged(Path(folder)), Threads(1, 1))
        runs = conversations(engine, data / "tools", QUICK_TURNS if quick else TURNS)
        return compare(engine, runs, longest_pause=LONGEST_PAUSE / (10 if quick else 1))


def conversations(engine: Engine, data: Path, most: int) -> list[list[Script]]:
    """Return the conversations, each with at most so many calls that fit the context."""
    scripts, runs = Scripts(engine.model), []
    for calls in recorded_runs(data):
        short = [call._replace(said=[text[:SAID] for text in call.said]) for call in calls[:most]]
        run = [script for script in scripts.scripts(short) if len(script.prompt) + len(script.output) < CONTEXT]
        runs += [run] if len(run) >= QUICK_TURNS else []
        if len(runs) == RUNS:
            break
    return runs


def compare(engine: Engine, runs: list[list[Script]], *, longest_pause: float) -> dict[str, object]:
    by_arrival, ours = (Runs(engine, runs, order, longest_pause=longest_pause) for order in (WatchedArrival, Watched))
    for one in (by_arrival, ours):
        one.serve()
    return {
        "admission_completion": round(sum(ours.completion) / sum(by_arrival.completion), 3),
        "admission_hits": round(ours.cached / ours.read - by_arrival.cached / by_arrival.read, 3),
        "admission_worst_wait": round(max(ours.waits) / max(by_arrival.waits), 3),
        "admission_worst_turn": round(ours.longest_turn / by_arrival.longest_turn, 3),
    }
