"""`kill -9` while tools act: real processes, killed at any moment and started again until the run is finished."""

import json
import random
import sqlite3
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from .killed_runs import STEPS, TEXTS, Order, Outcome, Step

_CHILD: Final = Path(__file__).with_name("killed_runs.py")
_SEED: Final = 2026
_CALLS: Final = 3 * len(TEXTS)
_STEPS_OF_PLAIN: Final[tuple[Step, ...]] = ("meant", "acted")
"""Those that there are without a ledger."""
_AGAIN: Final = 1 / 3
"""Of the runs that were killed are killed once more."""


@dataclass
class Tally:
    """What became of effects."""

    lost: int = 0
    """Effects that are not there, and of which the model was not told so."""
    repeated: int = 0
    unfinished: int = 0
    """Runs that never came to their end."""
    told_unknown: int = 0
    """Results that said that the outcome is not known, as of calls that can neither be repeated nor looked up."""


def figures(data: Path, *, quick: bool) -> dict[str, Any]:
    """`kill9_lost` and `kill9_repeated` effects of `kill9_points` kills, and the same under LangGraph's `AsyncSqliteSaver`."""
    points = 12 if quick else 200
    with tempfile.TemporaryDirectory() as name, _started_once() as start:
        ledger = Trial(Path(name, "ledger"), start, is_durable=True).of_kills(points)
        plain = Trial(Path(name, "plain"), start, is_durable=False).of_kills(points // 2 if quick else points)
    return {**_named("kill9", ledger), **_named("kill9_langgraph", plain)}


def _named(name: str, found: tuple[int, Tally]) -> dict[str, Any]:
    points, tally = found
    return {f"{name}_points": points, **{f"{name}_{key}": value for key, value in vars(tally).items()}}


class Starter:
    """Starts runs in processes that are forked from one that has imported everything."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self._process = process

    def __call__(self, order: Order) -> Outcome:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(order._asdict()) + "\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        if not answer:
            raise RuntimeError(f"the run {order.run} failed; its error is above")
        return Outcome(**json.loads(answer))


@contextmanager
def _started_once() -> Iterator[Starter]:
    with subprocess.Popen([sys.executable, str(_CHILD)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield Starter(process)
        finally:
            process.kill()


class Trial:
    """Runs in one folder, each of them killed and gone on with until it is finished."""

    def __init__(self, folder: Path, start: Starter, *, is_durable: bool) -> None:
        self._folder = folder
        self._start = start
        self._is_durable = is_durable
        self._random = random.Random(_SEED)
        self._runs: list[str] = []
        self._seconds = min(self._start(self._order(self._new())).seconds for _ in range(3))
        """Seconds that a run takes which is not killed."""

    def of_kills(self, points: int) -> tuple[int, Tally]:
        """How many processes were killed, and what became of the effects of their runs."""
        killed = 0
        while killed < points:
            run, is_next_killed = self._new(), True
            while not self._start(self._killed(run) if is_next_killed else self._order(run)).is_finished:
                killed += 1
                is_next_killed = self._random.random() < _AGAIN
        return killed, self._tally()

    def _new(self) -> str:
        self._runs.append(f"run-{len(self._runs)}")
        return self._runs[-1]

    def _order(self, run: str) -> Order:
        return Order(str(self._folder), run, self._is_durable)

    def _killed(self, run: str) -> Order:
        """At any moment of the run, or at any step of any call."""
        order = self._order(run)
        if self._random.random() < 0.5:
            return order._replace(seconds=self._random.uniform(0, self._seconds))
        steps = STEPS if self._is_durable else _STEPS_OF_PLAIN
        return order._replace(step=self._random.choice(steps), call=self._random.randint(1, _CALLS))

    def _tally(self) -> Tally:
        tally = Tally()
        finished = Counter(run for run, _ in self._lines("finished.txt"))
        told = {run: int(said.split()[0]) for run, said in self._lines("finished.txt")}
        done = {name: Counter(self._lines(f"{name}.txt")) for name in ("append", "send")} | {"insert": self._inserted()}
        for run in self._runs:
            lost = {name: self._differs(done[name], run, -1) for name in done}
            tally.unfinished += not finished[run]
            tally.told_unknown += told.get(run, 0)
            tally.lost += lost["append"] + lost["insert"] + max(lost["send"] - told.get(run, 0), 0)
            tally.repeated += sum(self._differs(counts, run, 1) for counts in done.values())
        return tally

    def _differs(self, done: Counter[tuple[str, str]], run: str, sign: int) -> int:
        """How many effects of a run are there beyond those that were meant; with a sign of -1, how many are missing."""
        return sum(max(sign * (done[run, text] - count), 0) for text, count in Counter(TEXTS).items())

    def _lines(self, name: str) -> list[tuple[str, str]]:
        """The run and the text of each line."""
        file = self._folder / name
        parts = (line.split(" ", 2) for line in file.read_text(encoding="utf-8").splitlines())
        return [(run, text) for _, run, text in parts]

    def _inserted(self) -> Counter[tuple[str, str]]:
        with closing(sqlite3.connect(self._folder / "insert.db")) as connection:
            return Counter(connection.execute("SELECT run, text FROM entries").fetchall())
