"""The lessons of arXiv 2605.30102 tested on the runs of a sweep: each holds, does not hold, or cannot be tested, by a rule stated with it.

A difference counts where its 95 % interval excludes zero. A lesson about several worlds holds where it holds in each of them. The best
of several configurations is chosen on the same tasks that it is then compared on, so its lead is a little flattered.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Final, Literal

from ....protocols.steps import Value
from ...task.modes import Strategy
from ..statistics import IntervalEstimate, mean
from .outcomes import Outcomes, find_intervals, plan_only

Answer = Literal["holds", "does not hold", "cannot be tested here"]

_SUPERVISED: Final = (Strategy.PEVR, Strategy.EVA)
STATEFUL: Final = ("apps",)
"""Worlds whose tools change what the task is graded by."""
SEARCHING: Final = ("search",)
"""Worlds whose tools only read."""
_SAME_SCORE: Final = 0.02
"""A loss of score that counts as keeping it."""
_LITTLE: Final = 0.05
"""A gain of score that counts as little."""


class Lesson(Value):
    """A lesson, what the sweep says to it, and why."""

    number: int
    lesson: str
    rule: str
    """When it holds."""
    answer: Answer
    because: str
    """The numbers behind the answer."""


Verdict = tuple[Answer, str]
Test = Callable[[Outcomes], Verdict]
WorldTest = Callable[[Outcomes, str], Verdict]


def findings(outcomes: Outcomes) -> list[Lesson]:
    """Return all eleven lessons, in the paper's order."""
    found = []
    for number, (lesson, rule, test) in enumerate(_LESSONS, start=1):
        answer, because = test(outcomes)
        found.append(Lesson(number=number, lesson=lesson, rule=rule, answer=answer, because=because))
    return found


def _everywhere(test: WorldTest, worlds: Sequence[str] | None = None) -> Test:
    """Return a test of each world, or of the named ones among them: it must hold in all that can tell."""

    def over_worlds(outcomes: Outcomes) -> Verdict:
        tested = [world for world in outcomes.worlds if worlds is None or world in worlds]
        if not tested:
            return "cannot be tested here", f"no run is from {' or '.join(worlds or ())}, the kind of world that it is about."
        return _all_of([(world, test(outcomes, world)) for world in tested])

    return over_worlds


def _all_of(verdicts: Iterable[tuple[str, Verdict]]) -> Verdict:
    known = list(verdicts)
    answers = {answer for _, (answer, _) in known}
    because = " ".join(f"{world}: {reason}" for world, (_, reason) in known)
    if "does not hold" in answers:
        return "does not hold", because
    return ("holds" if "holds" in answers else "cannot be tested here"), because


def _cannot(reason: str) -> Verdict:
    return "cannot be tested here", f"{reason}."


def _answer(holds: bool, reason: str) -> Verdict:
    return ("holds" if holds else "does not hold"), f"{reason}."


def _collaboration(outcomes: Outcomes, world: str) -> Verdict:
    near, far, hybrids = outcomes.near_alone(world), outcomes.far_alone(world), outcomes.hybrids(world)
    if near is None or far is None or not hybrids:
        return _cannot("it takes runs of near alone, far alone and a hybrid")
    cheaper = [label for label in hybrids if _is_below(outcomes.ratio(world, label, far, "dollars"), 1)]
    best = outcomes.best(world, cheaper)
    if best is None:
        return _answer(False, f"no hybrid is cheaper than {far}")
    gain, share = outcomes.difference(world, best, near), outcomes.ratio(world, best, far, "dollars")
    return _answer(_is_above(gain, 0), f"{best} beats {near} by {_points(gain)} at {_percent(share)} of {far}'s dollars")


def _no_free_lunch(outcomes: Outcomes) -> Verdict:
    winners: dict[str, str] = {}
    reasons = []
    for world in outcomes.worlds:
        pevr, eva = (outcomes.best(world, outcomes.family(world, strategy)) for strategy in _SUPERVISED)
        if pevr is None or eva is None:
            continue
        lead = outcomes.difference(world, pevr, eva)
        reasons.append(f"{world}: {pevr} is {_points(lead)} above {eva}.")
        if _is_above(lead, 0) or _is_below(lead, 0):
            winners[world] = "pevr" if _is_above(lead, 0) else "eva"
    if len(reasons) < 2:
        return _cannot("it takes runs of pevr and eva in two worlds")
    return ("holds" if len(set(winners.values())) > 1 else "does not hold"), " ".join(reasons)


def _more_is_not_better(outcomes: Outcomes, world: str) -> Verdict:
    verdicts = [verdict for strategy in _SUPERVISED if (verdict := _optimal_interval(outcomes, world, strategy))]
    if not verdicts:
        return _cannot("it takes three intervals of pevr or eva")
    return _answer(any(answer == "holds" for answer, _ in verdicts), "; ".join(reason for _, reason in verdicts))


def _optimal_interval(outcomes: Outcomes, world: str, strategy: Strategy) -> Verdict | None:
    """Test whether checking most often scores below the best interval."""
    intervals = find_intervals(outcomes, world, strategy)
    best = outcomes.best(world, intervals.values())
    if len(intervals) < 3 or best is None:
        return None
    busiest = intervals[min(intervals)]
    if best == busiest:
        return "does not hold", f"{busiest}, which checks most often, is the best {strategy}"
    loss = outcomes.difference(world, busiest, best)
    return ("holds" if _is_below(loss, 0) else "does not hold"), f"{busiest} is {_points(loss)} above {best}"


def _energy(outcomes: Outcomes, world: str) -> Verdict:
    near = outcomes.near_alone(world)
    supervised = outcomes.supervised(world)
    if near is None or not supervised or outcomes.estimate(world, near, "joules") is None:
        return _cannot("it takes runs of near alone and of pevr or eva, and a near model whose number of weights is known")
    losses = {label: outcomes.difference(world, label, near) for label in supervised}
    keeping = [label for label, loss in losses.items() if loss is not None and loss.value > -_SAME_SCORE]
    if not keeping:
        return _answer(False, "no supervised configuration keeps the score of near alone")
    ratios = {label: ratio for label in keeping if (ratio := outcomes.ratio(world, label, near, "joules"))}
    if not ratios:
        return _cannot(f"{near} or those that keep its score took no joules, or unknown ones")
    least = min(ratios, key=lambda label: ratios[label].value)
    return _answer(ratios[least].high < 1, f"{least} keeps the score with {_percent(ratios[least])} of {near}'s joules (estimated)")


def _executor_size(outcomes: Outcomes) -> Verdict:
    models = {record.near_model for record in outcomes.records}
    return _cannot(f"the sweep ran {len(models - {None})} near model; it takes several sizes of one family")


def _plans_matter(outcomes: Outcomes, world: str) -> Verdict:
    near = outcomes.near_alone(world)
    planned = plan_only(outcomes, world)
    if near is None or planned is None:
        return _cannot("it takes runs of near alone and of pevr/inf, which plans and never checks")
    gain = outcomes.difference(world, planned, near)
    return _answer(_is_above(gain, _LITTLE), f"the initial plan alone brings {planned} {_points(gain)} above {near}")


def _light_advice(outcomes: Outcomes, world: str) -> Verdict:
    near, planned = outcomes.near_alone(world), plan_only(outcomes, world)
    drops = {label: drop for label in outcomes.supervised(world) if (drop := _drop_with_interventions(outcomes, world, label))}
    if near is None or planned is None or not drops:
        return _cannot("it takes near alone, pevr/inf, and runs with and without interventions")
    gain = outcomes.difference(world, planned, near)
    falls = [label for label, drop in drops.items() if _is_above(drop, 0)]
    share = f"{len(falls)} of {len(drops)} configurations"
    reason = f"the initial plan alone is worth {_points(gain)}; the score falls with interventions in {share}"
    return _answer(gain is not None and gain.value < _LITTLE and 2 * len(falls) > len(drops), reason)


def _drop_with_interventions(outcomes: Outcomes, world: str, label: str) -> IntervalEstimate | None:
    """Return the mean score of runs without interventions less that of runs with two or more. These are different tasks, so it is
    unpaired."""
    runs = [(record.interventions, f"{record.task}/{record.seed}", record.score) for record in outcomes.runs(world, label)]
    calm = {run: [score] for count, run, score in runs if count == 0}
    restless = {run: [score] for count, run, score in runs if count > 1}
    if min(len(calm), len(restless)) < 10:
        return None
    first, second = mean(calm), mean(restless)
    return IntervalEstimate(value=first.value - second.value, low=first.low - second.high, high=first.high - second.low)


def _policy_depends(outcomes: Outcomes) -> Verdict:
    best = {world: found for world in outcomes.worlds if (found := _best_interval(outcomes, world))}
    stateful, searching = (next((world for world in worlds if world in best), None) for worlds in (STATEFUL, SEARCHING))
    if stateful is None or searching is None:
        return _cannot("it takes a stateful and a searching world, each with several intervals")
    leads = {world: _lead_over_interval(outcomes, world, best[other][1]) for world, other in ((stateful, searching), (searching, stateful))}
    reason = ", ".join(f"{label} is the best interval in {world}" for world, (label, _) in best.items())
    if best[stateful][1] >= best[searching][1]:
        return _answer(False, reason)
    known = "; ".join(f"in {world} it is {_points(lead)} above the other world's" for world, lead in leads.items())
    return _answer(all(_is_above(lead, 0) for lead in leads.values()), f"{reason}; {known}")


def _best_interval(outcomes: Outcomes, world: str) -> tuple[str, int] | None:
    """Return the best configuration on schedule, and its turns between two checks."""
    intervals = {label: turns for strategy in _SUPERVISED for turns, label in find_intervals(outcomes, world, strategy).items()}
    best = outcomes.best(world, intervals) if len(set(intervals.values())) > 1 else None
    return (best, intervals[best]) if best is not None else None


def _lead_over_interval(outcomes: Outcomes, world: str, turns: int) -> IntervalEstimate | None:
    """Return the lead of a world's best configuration on schedule over the best one with another interval."""
    intervals = [find_intervals(outcomes, world, strategy) for strategy in _SUPERVISED]
    best = outcomes.best(world, [label for labels in intervals for label in labels.values()])
    other = outcomes.best(world, [labels[turns] for labels in intervals if turns in labels])
    return outcomes.difference(world, best, other) if best is not None and other is not None else None


def _roles(outcomes: Outcomes, world: str) -> Verdict:
    far = outcomes.far_alone(world)
    reversed_ones = [label for label in outcomes.hybrids(world) if outcomes.is_reversed(world, label)]
    best = outcomes.best(world, reversed_ones)
    if far is None or best is None:
        return _cannot("it takes runs of far alone and of a +reversed configuration")
    gain, share = outcomes.difference(world, best, far), outcomes.ratio(world, best, far, "dollars")
    is_dearer = share is not None and share.value >= 1
    return _answer(not _is_above(gain, 0) and is_dearer, f"{best} is {_points(gain)} above {far} at {_percent(share)} of its dollars")


def _not_the_sum(outcomes: Outcomes, world: str) -> Verdict:
    near, far, best = outcomes.near_alone(world), outcomes.far_alone(world), outcomes.best(world, outcomes.hybrids(world))
    if near is None or far is None or best is None:
        return _cannot("it takes runs of near alone, far alone and a hybrid")
    solved = outcomes.solved(world, near=near, far=far, hybrid=best)
    everything = [near, far, *outcomes.hybrids(world)]
    single = outcomes.best(world, everything, "success")
    assert single is not None, "near, far and a hybrid have runs"
    ahead = outcomes.hindsight(world, everything, single)
    reason = (
        f"{best} solves {solved.hybrid_only} of {solved.runs} runs that neither side solves alone; "
        f"choosing per task with hindsight would solve {_points(ahead)} more than {single}"
    )
    return _answer(solved.hybrid_only > 0.01 * solved.runs and _is_above(ahead, 0), reason)


def _memory(outcomes: Outcomes, world: str) -> Verdict:
    near = outcomes.near_alone(world)
    ratios = {
        label: ratio for label in outcomes.supervised(world) if near and (ratio := outcomes.ratio(world, label, near, "peak_kv_bytes"))
    }
    if not ratios:
        return _cannot("it takes near alone, pevr or eva, and a near model whose KV cache is known")
    best = outcomes.best(world, ratios)
    assert best is not None, "there is at least one"
    reason = f"{best}, the best of them, peaks at {_percent(ratios[best])} of {near}'s KV bytes"
    return _answer(ratios[best].high < 1, "; ".join([reason, *_peaks_where_reset(outcomes, world)]))


def _peaks_where_reset(outcomes: Outcomes, world: str) -> list[str]:
    """Compare the KV peak of runs that were reset with that of the same tasks under the pevr that never resets."""
    planned = plan_only(outcomes, world)
    most = outcomes.best(world, outcomes.family(world, Strategy.PEVR), "interventions")
    if planned is None or most is None or planned == most:
        return []
    resets = [record for record in outcomes.runs(world, most) if record.interventions > 0]
    if not resets:
        return []
    share = Outcomes([*resets, *outcomes.runs(world, planned)]).ratio(world, most, planned, "peak_kv_bytes")
    return [f"in the {len(resets)} runs in which {most} was reset, at {_percent(share)} of {planned}, which never is, on the same tasks"]


def _is_above(estimate: IntervalEstimate | None, bound: float) -> bool:
    return estimate is not None and estimate.low > bound


def _is_below(estimate: IntervalEstimate | None, bound: float) -> bool:
    return estimate is not None and estimate.high < bound


def _points(estimate: IntervalEstimate | None) -> str:
    """Format a difference of shares in points."""
    if estimate is None:
        return "an unknown number of points"
    return f"{100 * estimate.value:+.1f} points [{100 * estimate.low:+.1f}, {100 * estimate.high:+.1f}]"


def _percent(estimate: IntervalEstimate | None) -> str:
    return "an unknown share" if estimate is None else f"{estimate.value:.0%} [{estimate.low:.0%}, {estimate.high:.0%}]"


_LESSONS: Final[Sequence[tuple[str, str, Test]]] = (
    (
        "Collaboration works: a hybrid beats the near agent alone and costs less than the far one alone.",
        "Among hybrids that cost less than far alone, the best one scores above near alone.",
        _everywhere(_collaboration),
    ),
    (
        "No free lunch: no architecture is best everywhere.",
        "pevr leads in one world and eva in another.",
        _no_free_lunch,
    ),
    (
        "More cloud is not better: past an optimal interval, more checks lower the score.",
        "In pevr or eva, the shortest of at least three intervals scores below the best one.",
        _everywhere(_more_is_not_better),
    ),
    (
        "Supervision saves energy on the device, since it resets the context.",
        f"A supervised configuration that loses less than {100 * _SAME_SCORE:.0f} points against near alone takes fewer joules.",
        _everywhere(_energy),
    ),
    (
        "A larger executor performs better.",
        "The score rises with the number of weights of the near model.",
        _executor_size,
    ),
    (
        "Stateful tasks need a structured plan: it helps even without a single intervention.",
        f"In stateful worlds, pevr without checks scores more than {100 * _LITTLE:.0f} points above near alone.",
        _everywhere(_plans_matter, STATEFUL),
    ),
    (
        "Deep search wants light advice in small doses: the plan brings little, and the score falls with each restart.",
        f"In searching worlds, the plan brings less than {100 * _LITTLE:.0f} points, and in most configurations runs with two or more "
        "interventions score below runs with none.",
        _everywhere(_light_advice, SEARCHING),
    ),
    (
        "How often to verify depends on the task: often where plans carry stateful work, seldom in search.",
        "The best interval is shorter in the stateful world than in the searching one, and in each it scores above the other's.",
        _policy_depends,
    ),
    (
        "Roles should not be reversed: far as executor and near as supervisor is no better than far alone, and costs more.",
        "The best reversed configuration does not score above far alone and costs at least as much.",
        _everywhere(_roles),
    ),
    (
        "A hybrid is not the sum of its parts: it solves what neither side solves, and choosing per task would do better still.",
        "The best hybrid solves more than 1 % of runs that neither side solves, and the union of all solves more than the best one.",
        _everywhere(_not_the_sum),
    ),
    (
        "Resets bound the memory: the KV cache peaks lower than where the near agent works alone.",
        "The best supervised configuration has the lower mean peak.",
        _everywhere(_memory),
    ),
)
