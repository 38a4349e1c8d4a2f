"""Hot reload: 200 decisions at a time while the policy's file is replaced, overwritten in place, cut off and broken."""

import time
from collections import Counter
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from threading import Event, Lock
from typing import Any, Final

import anyio
import anyio.to_process
import anyio.to_thread

from nearfar.orchestrator.compose.policy_file import PolicyFile
from nearfar.orchestrator.lab.replay import RecordedAgent
from nearfar.orchestrator.routing import Router
from nearfar.orchestrator.task import Task, as_messages
from nearfar.protocols import NearfarError, Side

DECISIONS: Final = 200
"""Made at the same time, each in a thread of its own."""
_SECONDS: Final = {True: 1.5, False: 20.0}
_LONGEST_PAUSE: Final = 0.01
"""Seconds between the two halves of a file that is written in place."""
_LONGEST_WAIT: Final = 0.4
"""Seconds from one content of the file to the next."""
_BREATH: Final = 0.05
"""Seconds between two decisions of a thread: without, 200 threads leave no time to anybody else."""
_PATIENCE: Final = 0.5
"""Seconds until the last content has to be in force."""
_AGENTS: Final = (RecordedAgent("near", Side.NEAR), RecordedAgent("far", Side.FAR))
_BROKEN: Final = ("[policy", "[policy]\nmode = 'sideways'\n", "[policy.objective]\nquality = -1\n", "\x00")


@dataclass(slots=True)
class _Seen:
    """What the decisions came upon."""

    counts: Counter[str] = field(default_factory=Counter)
    policies: set[float] = field(default_factory=set)
    lock: Lock = field(default_factory=Lock)

    def add(self, what: str, number: float | None = None) -> None:
        with self.lock:
            self.counts[what] += 1
            if number is not None:
                self.policies.add(number)


def figures(data: Path, *, quick: bool) -> dict[str, Any]:
    """Torn policies, of which one field is older than the other, and errors. `data` is not read."""
    with TemporaryDirectory(prefix="nearfar-reload-") as folder:
        return anyio.run(_measured, Path(folder) / "nearfar.toml", _SECONDS[quick])


async def _measured(path: Path, seconds: float) -> dict[str, Any]:
    path.write_text(_content(1), encoding="utf-8")
    policies, router, seen, is_over = PolicyFile(path), Router(), _Seen(), Event()
    limiter = anyio.CapacityLimiter(DECISIONS)
    async with anyio.create_task_group() as group:
        for _ in range(DECISIONS):
            group.start_soon(lambda: anyio.to_thread.run_sync(_decide, policies, router, seen, is_over, limiter=limiter))
        last = await anyio.to_process.run_sync(rewrite, path, seconds)
        is_over.set()
    return {
        "hot_reload": {
            "concurrent": DECISIONS,
            "decisions": seen.counts["decisions"],
            "contents_written": last,
            "policies_in_force": len(seen.policies),
            "torn": seen.counts["torn"],
            "errors": seen.counts["errors"],
            "newest_in_force_at_the_end": policies.current.router.threshold == last and policies.problem is None,
        }
    }


def _decide(policies: PolicyFile, router: Router, seen: _Seen, is_over: Event) -> None:
    """One decision after the other, each under the policy that is in force when it begins."""
    while not is_over.wait(_BREATH):
        try:
            policy = policies.current
            decision = router.decide(Task(messages=as_messages("What is 7 times 6?"), policy=policy), _AGENTS)
        except NearfarError:
            seen.add("errors")
            continue
        is_torn = policy.objective.dollars != policy.router.threshold or decision.threshold != policy.objective.dollars
        seen.add("torn" if is_torn else "decisions", policy.router.threshold)


def rewrite(path: Path, seconds: float) -> int:
    """Give the file one content after the other, in all the ways of editors; the number of the last one, which is whole.

    It runs in a process of its own, as an editor does.
    """
    random, end = Random(0), time.monotonic() + seconds
    ways = (_replace, _overwrite, _break)
    for number in count(2):
        if time.monotonic() > end:
            _replace(path, number, random)
            time.sleep(_PATIENCE)
            return number
        ways[number % len(ways)](path, number, random)
        time.sleep(random.uniform(0, _LONGEST_WAIT))
    raise AssertionError("counting does not end")


def _replace(path: Path, number: int, random: Random) -> None:
    """As a whole."""
    written = path.with_suffix(".new")
    written.write_text(_content(number), encoding="utf-8")
    written.replace(path)


def _overwrite(path: Path, number: int, random: Random) -> None:
    """In place and in two parts, wherever the first one ends."""
    text = _content(number)
    cut = random.randrange(len(text))
    with path.open("w", encoding="utf-8") as file:
        file.write(text[:cut])
        file.flush()
        time.sleep(random.uniform(0, _LONGEST_PAUSE))
        file.write(text[cut:])


def _break(path: Path, number: int, random: Random) -> None:
    """With something that is no policy."""
    path.write_text(random.choice(_BROKEN), encoding="utf-8")


def _content(number: int) -> str:
    """A policy of which two fields agree."""
    return (
        '[policy]\nstrategy = "route"\nsensitivity = "public"\n\n'
        f"[policy.objective]\ndollars = {number}\n\n[policy.router]\nthreshold = {number}\n"
    )
