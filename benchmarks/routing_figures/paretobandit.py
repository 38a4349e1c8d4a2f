"""Budgets of 10, 20 and 30 % far calls on the same recorded tasks: ours, ParetoBandit (arXiv 2604.00136) and LiteLLM's complexity router.

ParetoBandit is run from its own wheel in its own virtual environment. Its disjoint LinUCB looks at 25 whitened principal components of the
MiniLM embedding, as by default, learns from the outcomes of both sides on the other folds, and serves a fold as a stream under its budget
pacer. LiteLLM's router has no budget and gets ours. Ours is the head of the other folds under `FarShareController`; and, on the sets with
recorded drafts, the evidence after a draft. Points are those over sending as many tasks far at random.
"""

import json
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any, Final

import numpy

from nearfar.orchestrator.lab.statistics import routing_curve
from nearfar.orchestrator.lab.training import train_head
from nearfar.orchestrator.lab.training.report import Remembered, load_head, predictions
from nearfar.orchestrator.routing.budget import FarShareController
from nearfar.orchestrator.routing.traces import AgentOutcome, Trace
from nearfar.orchestrator.routing.training import examples_of, folds_of
from nearfar.orchestrator.util.embedding import MiniLmEmbedder

from .._environments import HOUR, cache_folder, last_line, python_with
from . import litellm, paretobandit_worker
from .evidence_answers import SETS
from .evidence_calls import FAR as CALLS_FAR
from .evidence_calls import XLAM_1B
from .pairings import USUAL, pairing_gains
from .prompt_only import FAR, NEAR
from .transfer import recorded

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[numpy.float64]
    Flags = NDArray[numpy.bool_]
    Rows = NDArray[numpy.int64]

RELEASE: Final = "0.1.1"
SHARES: Final = (0.1, 0.2, 0.3)
COMPONENTS: Final = 25
FOLDS: Final = 3
MOST: Final = 2000
"""Prompts of a set."""
QUICK: Final = 150
QUICK_SETS: Final = ("bfcl",)
DCROUTER: Final = ("qwen2.5-7b-instruct", "llama-3.1-nemotron-51b-instruct")
_PAIRS: Final = {
    "mmlu": (NEAR, FAR),
    "dcrouter": DCROUTER,
    "cruxeval": (SETS[0].usual[0], SETS[0].far),
    "math_l5": (SETS[1].usual[0], SETS[1].far),
    "bfcl": (XLAM_1B, CALLS_FAR),
}


def figures(folder: Path, *, quick: bool, cache: Path | None = None) -> dict[str, Any]:
    """Points and APGR of each router on each set, and the least lead of ours. A quick run looks at a part of one, and installs nothing."""
    home = cache or cache_folder()
    sets = {name: traces for name, traces in recorded(folder).items() if not quick or name in QUICK_SETS}
    served = [Tasks.of(name, traces, folder, most=QUICK if quick else MOST) for name, traces in sets.items()]
    found: dict[str, dict[str, Any]] = {
        "prompt_only": _measured(served, lambda tasks: tasks.by_head()),
        "evidence": _measured([tasks for tasks in served if tasks.evidence is not None], lambda tasks: tasks.evidence),
    }
    for name, route in (("paretobandit", _paretobandit), ("litellm", _litellm)):
        try:
            python = route(home, may_install=not quick)
            found[name] = _measured(served, python)
        except LookupError as error:
            found[name] = {"not measured": str(error)}
    return {"paretobandit_release": RELEASE, "at_budgets": found} | _leads(found)


@dataclass(frozen=True, slots=True)
class Told:
    """A router's view of the tasks of a set."""

    gains: "Floats"
    """What the far side is expected to gain."""
    far: "dict[float, Flags] | None" = None
    """Tasks that it sent far, by the share that it was to keep; None: our controller decides by the gains."""


@dataclass(frozen=True, slots=True)
class Tasks:
    """The tasks of a set in random order, with one near and one far agent."""

    name: str
    prompts: Sequence[str]
    rewards: "Floats"
    """(tasks, 2): near, far."""
    vectors: "NDArray[numpy.float32]"
    """(tasks, 768)."""
    meanings: "NDArray[numpy.float32]"
    """(tasks, 384): what ParetoBandit embeds with."""
    evidence: Told | None

    @classmethod
    def of(cls, name: str, traces: Sequence[Trace], folder: Path, *, most: int) -> "Tasks":
        """Draw them."""
        gains = _evidence(name, folder)
        places = numpy.random.default_rng(0).permutation(len(traces))[:most]
        prompts = [traces[place].prompt for place in places]
        rewards = numpy.array([[traces[place].outcomes[agent].score for agent in _PAIRS[name]] for place in places], dtype=numpy.float64)
        embedder = MiniLmEmbedder()
        evidence = None if gains is None else Told(gains[places])
        return cls(name, prompts, rewards, embedder.early_all(prompts), embedder.embed_all(prompts), evidence)

    def folds(self) -> "list[tuple[Rows, Rows]]":
        """Rows to learn from, and rows that are asked about."""
        fold = folds_of(self.prompts, FOLDS, 0)
        return [(numpy.flatnonzero(fold != held), numpy.flatnonzero(fold == held)) for held in range(FOLDS)]

    def by_head(self) -> Told:
        """Gains by heads that have not seen the task."""
        traces = [
            Trace(prompt=prompt, outcomes={"near": AgentOutcome(score=near), "far": AgentOutcome(score=far)})
            for prompt, (near, far) in zip(self.prompts, self.rewards.tolist(), strict=True)
        ]
        every = examples_of(traces, ("near", "far"))
        place = {prompt: row for row, prompt in enumerate(self.prompts)}
        every = replace(every, classes=(), embeddings=self.vectors[[place[prompt] for prompt in every.prompts]])
        fold = folds_of(every.prompts, FOLDS, 0)
        found: dict[str, Any] = {}
        for held in range(FOLDS):
            asked = every.part(numpy.flatnonzero(fold == held))
            assert asked.embeddings is not None, "they are embedded as a whole"
            with load_head(train_head(every.part(numpy.flatnonzero(fold != held))), Remembered(asked.prompts, asked.embeddings)) as head:
                chances = predictions(head, asked)[1].astype(numpy.float64)
            found |= dict(zip(asked.prompts, chances[:, 1] - chances[:, 0], strict=True))
        return Told(numpy.array([found[prompt] for prompt in self.prompts]))

    def points(self, told: Told, share: float) -> float:
        """By how many points of score a router is ahead of sending as many tasks far at random."""
        far = _paced(told.gains, share) if told.far is None else told.far[share]
        gap = self.rewards[:, 1] - self.rewards[:, 0]
        return float(100 * ((far * gap).mean() - far.mean() * gap.mean()))


def _evidence(name: str, folder: Path) -> "Floats | None":
    """Gains after a draft and one opinion, in the order of the recorded set; None where no drafts were recorded."""
    return pairing_gains(USUAL[name], folder) if name in USUAL else None


def _paced(gains: "Floats", share: float) -> "Flags":
    controller, far = FarShareController(share), []
    for gain in gains.tolist():
        far.append(gain > controller.threshold)
        controller.observe(gain, went_far=far[-1])
    return numpy.array(far)


def _measured(served: Sequence[Tasks], route: Callable[[Tasks], Told | None]) -> dict[str, dict[str, float]]:
    """Points at each share, and APGR, by set."""
    found = {}
    for tasks in served:
        told = route(tasks)
        assert told is not None, "it was asked for where there is one"
        near, far = tasks.rewards.T
        points = {f"points_over_random_{100 * share:.0f}": round(tasks.points(told, share), 3) for share in SHARES}
        found[tasks.name] = points | {"apgr": round(routing_curve(told.gains, near, far).recovered, 4)}
    return found


def _leads(found: dict[str, dict[str, dict[str, float]]]) -> dict[str, float]:
    """By how many points ours is ahead, the mean over the budgets on the set where that is least: with all that we have, and by the prompt
    alone."""
    leads = {}
    for other in ("paretobandit", "litellm"):
        theirs = found[other]
        if "not measured" in theirs:
            continue
        for name, ours in (("best", found["prompt_only"] | found["evidence"]), ("prompt_only", found["prompt_only"])):
            leads[f"ahead_of_{other}_{name}"] = round(min(_mean(ours[each]) - _mean(theirs[each]) for each in theirs), 3)
    return leads


def _mean(figures: dict[str, float]) -> float:
    return fmean(value for name, value in figures.items() if name.startswith("points"))


def _paretobandit(cache: Path, *, may_install: bool) -> Callable[[Tasks], Told]:
    name = f"ParetoBandit {RELEASE}"
    python = python_with(name, f"paretobandit-{RELEASE}", [(f"paretobandit=={RELEASE}",)], cache=cache, may_install=may_install)

    def route(tasks: Tasks) -> Told:
        gains = numpy.zeros(len(tasks.prompts))
        far = {share: numpy.zeros(len(gains), dtype=bool) for share in SHARES}
        for known, held in tasks.folds():
            vectors = _components(tasks.meanings, known)
            asked = {"known_vectors": vectors[known].tolist(), "known_rewards": tasks.rewards[known].tolist(), "shares": SHARES}
            found = _run(python, asked | {"vectors": vectors[held].tolist(), "rewards": tasks.rewards[held].tolist()})
            gains[held] = found["gains"]
            for share in SHARES:
                far[share][held] = found["far"][str(share)]
        return Told(gains, far)

    return route


def _run(python: Path, asked: dict[str, Any]) -> dict[str, Any]:
    command = [str(python), "-I", paretobandit_worker.__file__]
    done = subprocess.run(command, input=json.dumps(asked), capture_output=True, text=True, check=False, timeout=HOUR)
    if done.returncode:
        raise LookupError(f"ParetoBandit {RELEASE} failed: {last_line(done.stderr)}")
    found: dict[str, Any] = json.loads(last_line(done.stdout))
    return found


def _components(meanings: "NDArray[numpy.float32]", known: "Rows") -> "Floats":
    """The principal components of those that may be learned from, scaled to variance 1, and 1 at the end."""
    centre = meanings[known].mean(0)
    _, _, axes = numpy.linalg.svd(meanings[known] - centre, full_matrices=False)
    found = (meanings - centre) @ axes[:COMPONENTS].T
    return numpy.column_stack([found / found[known].std(0), numpy.ones(len(found))]).astype(numpy.float64)


def _litellm(cache: Path, *, may_install: bool) -> Callable[[Tasks], Told]:
    router = litellm.LiteLLM.installed(cache, may_install=may_install)
    return lambda tasks: Told(numpy.array(router.scores(tasks.prompts)["v1"]))
