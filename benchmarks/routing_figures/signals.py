"""Free signals of the near model: how well each tells right drafts, and what it adds to the confidence in a world not learned from.

The drafts are those of `near_recording.py`: tasks of two worlds, carried out by the shipped models. A signal is judged in two ways.

* Alone: the area under the ROC curve for right drafts, of both models.
* Together with the confidence, in a card of the shipped escalation that is trained on one world and tested on the other: its gain is the
  APGR of that card less the APGR of a card on the confidence alone. The signal with the largest gain over five folds of the first world
  is the one chosen there. `signals_gain_by_doubt` sends the drafts far that the same cards take for wrong, whatever they think of far.

The probe is a ridge regression of the near model's success on the hidden state of a prompt's last token, in the middle of the model
(prefill activations, arXiv 2603.20895). Its penalty is chosen by five folds in the world that it is trained on.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy

from nearfar.orchestrator.lab.statistics import percentile_interval
from nearfar.orchestrator.routing.escalation import Escalation
from nearfar.orchestrator.routing.looks import CONFIDENCE as LOOK
from nearfar.orchestrator.routing.looks import Look, Signal
from nearfar.orchestrator.routing.training import DraftExamples, out_of_fold_gains, train_escalation

from .evidence_measures import apgr, folds
from .near_drafts import CONFIDENCE, SIGNALS, STATES, WORLDS, RecordedDrafts, load_drafts

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[numpy.float64]

PROBES: Final = tuple(f"hidden_state_{prompt}" for prompt in STATES)
PREFILL: Final = PROBES[0]
PENALTIES: Final = (0.01, 0.1, 1.0, 10.0)
"""Of the ridge regression, times the number of tasks."""
_FARTHEST: Final = 4.0
"""Deviations from the mean beyond which a dimension counts no more, as in a card."""
_RESAMPLES: Final = 1000
_RESAMPLES_QUICK: Final = 40


def figures(_data: Path, *, quick: bool) -> dict[str, Any]:
    """Return the figures, from the recording that is kept with the benchmarks."""
    return figures_of(load_drafts(), resamples=_RESAMPLES_QUICK if quick else _RESAMPLES)


def figures_of(worlds: Mapping[str, RecordedDrafts], *, resamples: int) -> dict[str, Any]:
    """Return the figures of recorded drafts. A gain has the name of the world that was not learned from."""
    gains: dict[str, dict[str, Any]] = {}
    by_doubt: dict[str, dict[str, Any]] = {}
    chosen, moves = {}, []
    for known, unseen in (WORLDS, WORLDS[::-1]):
        pairs = _pairs(worlds[known], worlds[unseen])
        moved, doubted = _gains(worlds[known], worlds[unseen], pairs, resamples)
        gains[unseen], by_doubt[unseen] = ({name: _with_interval(each) for name, each in found.items()} for found in (moved, doubted))
        best = max(pairs, key=lambda name: _within(worlds[known], pairs[name][0]))
        chosen[unseen] = {"signal": best, **gains[unseen][best]}
        moves.append(moved[PREFILL])
    return {
        "signals_right": {world: {"near": drafts.near_right.mean(), "far": drafts.far_right.mean()} for world, drafts in worlds.items()},
        "signals_auroc": {world: _areas(drafts.near, drafts.near_right) | _probe_areas(drafts) for world, drafts in worlds.items()},
        "signals_auroc_of_far": {world: _areas(drafts.far, drafts.far_right) for world, drafts in worlds.items()},
        "signals_gain": gains,
        "signals_gain_by_doubt": by_doubt,
        "signals_chosen": chosen,
        "hidden_state_probe": _with_interval(numpy.mean(moves, axis=0)),
    }


def auroc(values: "Floats", right: "Floats") -> float:
    """Return the probability that a right draft has a higher value than a wrong one; ties count half (Mann and Whitney 1947)."""
    differences = values[right == 1][:, None] - values[right == 0][None, :]
    return float(((differences > 0) + 0.5 * (differences == 0)).mean())


def ridge(states: "Floats", targets: "Floats", penalty: float) -> Callable[["Floats"], "Floats"]:
    """Fit a ridge regression on standardised states, and return its prediction for others."""
    centre, scale = states.mean(axis=0), states.std(axis=0) + 1e-9

    def standard(rows: "Floats") -> "Floats":
        clipped: Floats = numpy.clip((rows - centre) / scale, -_FARTHEST, _FARTHEST)
        return clipped

    table = standard(states)
    inner = table.T @ table + penalty * len(table) * numpy.eye(table.shape[1])
    weights = numpy.linalg.solve(inner, table.T @ (targets - targets.mean()))
    return lambda rows: standard(rows) @ weights + targets.mean()


def out_of_fold(states: "Floats", targets: "Floats", penalty: float) -> "Floats":
    """Return the prediction for each row by a regression that has not seen it."""
    predicted = numpy.zeros(len(targets))
    for known, held in folds(len(targets)):
        predicted[held] = ridge(states[known], targets[known], penalty)(states[held])
    return predicted


def _probe(drafts: RecordedDrafts, prompt: int) -> "tuple[Floats, float]":
    """Return the probe's predictions out of fold with the best penalty, and that penalty."""
    states, targets = drafts.states[:, prompt], drafts.near_right
    tried = {penalty: out_of_fold(states, targets, penalty) for penalty in PENALTIES}
    best = max(tried, key=lambda penalty: auroc(tried[penalty], targets))
    return tried[best], best


def _pairs(known: RecordedDrafts, unseen: RecordedDrafts) -> "dict[str, tuple[Floats, Floats]]":
    """Return each signal but the confidence, in both worlds; probes are trained in the first."""
    pairs = {name: (known.signal(name), unseen.signal(name)) for name in SIGNALS if name != CONFIDENCE}
    for prompt, name in enumerate(PROBES):
        predicted, penalty = _probe(known, prompt)
        pairs[name] = (predicted, ridge(known.states[:, prompt], known.near_right, penalty)(unseen.states[:, prompt]))
    return pairs


def _examples(drafts: RecordedDrafts, further: "Floats | None" = None) -> DraftExamples:
    columns = {CONFIDENCE: drafts.signal(CONFIDENCE)} | ({} if further is None else {"further": further})
    findings = [{LOOK: Signal(dict(zip(columns, row, strict=True)))} for row in zip(*columns.values(), strict=True)]
    return DraftExamples("near", "far", [Look(name=LOOK)], findings, drafts.near_right, drafts.far_right)


def _within(known: RecordedDrafts, further: "Floats") -> float:
    """Return the APGR over five folds of a card with a further signal."""
    return apgr(out_of_fold_gains(_examples(known, further)), known.near_right, known.far_right)


def _chances(known: DraftExamples, unseen: DraftExamples) -> "Floats":
    """Return P(draft right) and P(far right) of each draft, as two rows, by a card that was trained on others."""
    card = Escalation(train_escalation(known))
    return numpy.array([card.probabilities(found) for found in unseen.findings]).T


def _gains(
    known: RecordedDrafts, unseen: RecordedDrafts, pairs: "Mapping[str, tuple[Floats, Floats]]", resamples: int
) -> "tuple[dict[str, Floats], dict[str, Floats]]":
    """Return how much each signal adds to the APGR of the confidence: on all tasks of the unseen world, then on resamples of them.

    The first result is by the gain that a card expects of the far model, the second by the doubt in the draft alone.
    """
    random, tasks = numpy.random.default_rng(0), len(unseen.near_right)
    draws = [numpy.arange(tasks), *(random.integers(0, tasks, tasks) for _ in range(resamples))]

    def recovered(scores: "Floats") -> "Floats":
        return numpy.array([apgr(scores[rows], unseen.near_right[rows], unseen.far_right[rows]) for rows in draws])

    def both(first: "Floats | None" = None, second: "Floats | None" = None) -> "Floats":
        draft, far = _chances(_examples(known, first), _examples(unseen, second))
        return numpy.stack([recovered(far - draft), recovered(-draft)])

    base = both()
    added = {name: both(*pair) - base for name, pair in pairs.items()}
    return {name: each[0] for name, each in added.items()}, {name: each[1] for name, each in added.items()}


def _with_interval(gains: "Floats") -> dict[str, float]:
    return percentile_interval(gains[0], gains[1:]).model_dump()


def _areas(signals: "Floats", right: "Floats") -> dict[str, float]:
    return {name: auroc(column, right) for name, column in zip(SIGNALS, signals.T, strict=True)}


def _probe_areas(drafts: RecordedDrafts) -> dict[str, float]:
    """Return the areas of the probes out of fold, within one world."""
    return {name: auroc(_probe(drafts, prompt)[0], drafts.near_right) for prompt, name in enumerate(PROBES)}
