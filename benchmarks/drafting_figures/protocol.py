"""The protocol of SPEED-Bench (arXiv 2604.09557) for drafted tool calls: families of tools that others recorded, and how many run at once.

`diverse`: how long accepted drafts are, and how many of their tokens are right, with drafts as long as they can be; no model runs.
`throughput`: seconds of plain decoding / of drafting by family and by steps at a time, on far.gguf enlarged to 115M parameters. One worker
for each number of steps works through all families by turns, and knows nothing at first. Both decode pass by pass by turns on one thread,
whose processor time counts, so that other programs disturb both alike.
"""

import tempfile
from collections import defaultdict
from collections.abc import Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Final

from nearfar.device.hardware.processors import Threads
from nearfar.device.worker.draft_payoff import Eager
from nearfar.device.worker.drafting import Drafting

from .engine import Engine, enlarged
from .recorded_calls import diverse_calls
from .rehearsal import Rehearsal, Script, Scripts

TOGETHER: Final = (1, 2, 4, 8)
_CALLS: Final = 8
_QUICK_CALLS: Final = 2


def protocol(name: str, data: Path, *, quick: bool) -> dict[str, object]:
    """Return the figures of `diverse` or `throughput`; the quick ones are of few calls."""
    with tempfile.TemporaryDirectory() as folder:
        engine = Engine(enlarged(Path(folder)), Threads(1, 1))
        scripts, calls = Scripts(engine.model), diverse_calls(data, _QUICK_CALLS if quick else _CALLS)
        found = {family: scripts.scripts(chosen) for family, chosen in calls.items()}
        return diverse(engine, found) if name == "diverse" else throughput(engine, found)


def diverse(engine: Engine, found: dict[str, list[Script]]) -> dict[str, object]:
    """Return what drafts come to in each family, and in the one where the fewest tokens are gained by a pass."""
    result = {}
    for family, scripts in found.items():
        rehearsal = Rehearsal(engine.model, Drafting(engine.model.vocabulary, tolerance=0.0, payoff=Eager()))
        for script in scripts:
            rehearsal.begin([script])
            while rehearsal.go_on():
                pass
        drafts = rehearsal.scheduler.drafts.values()
        runs, drafted, accepted = (sum(one[name] for one in drafts) for name in ("runs", "drafted", "accepted"))
        result[family] = {
            "tokens_per_forward": round(rehearsal.tokens / rehearsal.passes, 2),
            "acceptance_length": round(accepted / max(runs, 1), 2),
            "acceptance_rate": round(accepted / max(drafted, 1), 2),
        }
    return {"diverse": result, "diverse_worst": min(one["tokens_per_forward"] for one in result.values())}


def throughput(engine: Engine, found: dict[str, list[Script]]) -> dict[str, object]:
    """Return the speed-up of each cell, and the worst."""
    cells = {f"{family}, {together}": ratio for together in TOGETHER for family, ratio in _speedups(engine, found, together).items()}
    worst = min(cells, key=lambda cell: cells[cell])
    return {"throughput": cells, "drafting_worst_cell": cells[worst], "drafting_worst_cell_is": worst}


def _speedups(engine: Engine, found: dict[str, list[Script]], together: int) -> dict[str, float]:
    """Return plain / drafted seconds by family."""
    drafting = Drafting(engine.model.vocabulary, tolerance=0.0)
    plain, drafted = (Rehearsal(engine.model, way, together=together, computed=engine.context(together)) for way in (None, drafting))
    seconds: defaultdict[str, list[float]] = defaultdict(lambda: [0.0, 0.0])
    for family, scripts in _by_turns(found, together):
        before = [plain.seconds, drafted.seconds]
        _lockstep(plain, drafted, scripts)
        seconds[family][0] += plain.seconds - before[0]
        seconds[family][1] += drafted.seconds - before[1]
    return {family: round(of_plain / of_drafted, 3) for family, (of_plain, of_drafted) in seconds.items()}


def _by_turns(found: dict[str, list[Script]], together: int) -> list[tuple[str, list[Script]]]:
    """Return groups of scripts that run together, the families by turns."""
    groups = [[(family, scripts[at : at + together]) for at in range(0, len(scripts), together)] for family, scripts in found.items()]
    return [group for turn in zip_longest(*groups) for group in turn if group is not None]


def _lockstep(plain: Rehearsal, drafted: Rehearsal, scripts: Sequence[Script]) -> None:
    """Let both write the same calls, pass by pass by turns."""
    left = [plain, drafted]
    for rehearsal in left:
        rehearsal.begin(scripts)
    while left:
        left = [rehearsal for rehearsal in left if rehearsal.go_on()]
