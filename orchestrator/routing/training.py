"""Learning from traces: the examples that a head is trained on, the classes of tasks, and when to escalate."""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import TYPE_CHECKING, Final

from ...protocols import ConfigError, ToolCall
from .answers import Answer
from .call_looks import call_findings, call_opinion, read_calls
from .costs import lineage
from .escalation import (
    FARTHEST,
    MOST_PAID_LOOKS,
    EscalationCard,
    Fit,
    LearnedLook,
    Outlook,
    looks_of,
    measures_of_crowd,
    measures_of_look,
    sets_of,
)
from .looks import DRAFT, FREE, Cost, Look, Signal, free_findings, log_odds, text_opinion
from .traces import AgentOutcome, Trace

if TYPE_CHECKING:
    import numpy
    from numpy.typing import NDArray

    Doubles = NDArray[numpy.float64]
    Floats = NDArray[numpy.float32]
    Rows = NDArray[numpy.int64]

LEAST_PROMPTS: Final = 20
PENALTY: Final = 50.0
"""On half the squared weights of standardised measures: few traces move them little from 0."""
FOLDS: Final = 5
"""Folds of the traces: each regression predicts the fold that it has not seen, so that it can be calibrated."""
LEAST_TRACES: Final = 40
GROUPS: Final = 8
"""Equally large groups of gains before a look, and equally likely moves in each."""
_STEPS: Final = 25
_LEAST_DEVIATION: Final = 1e-9
"""Deviation from which a measure counts as varying, not only by rounding."""
_DIGITS: Final = 6
"""Significant digits kept of each number."""

Predict = Callable[[str], Mapping[str, float]]
"""The probability that each agent gets a prompt right."""


@dataclass(frozen=True, slots=True)
class Examples:
    """Prompts, and the outcome of each agent on them.

    `outcomes` has shape (prompts, agents), from 0 (wrong) to 1 (right); NaN where an agent was not tried or the outcome is unknown.
    `embeddings` has
    shape (prompts, 768), from `Embedder.early`, or is None. `classes` names the class of each prompt, from coarse to fine
    (`search/hops`),
    or nothing; without any, it is empty.
    """

    prompts: Sequence[str]
    agents: Sequence[str]
    outcomes: "Floats"
    embeddings: "Floats | None" = None
    classes: Sequence[str] = ()

    def part(self, rows: "Rows") -> "Examples":
        """Return the examples of some rows."""
        embeddings = None if self.embeddings is None else self.embeddings[rows]
        classes = [self.classes[row] for row in rows] if self.classes else ()
        return Examples([self.prompts[row] for row in rows], self.agents, self.outcomes[rows], embeddings, classes)

    def check(self) -> None:
        """Raise `ConfigError` for fewer than 20 prompts, or an agent whose outcomes are all missing or all the same."""
        import numpy

        if len(self.prompts) < LEAST_PROMPTS:
            raise ConfigError(
                f"{len(self.prompts)} prompts are too few to train a head on", hint=f"it takes {LEAST_PROMPTS}, and better 1,000"
            )
        for place, agent in enumerate(self.agents):
            known = self.outcomes[:, place][~numpy.isnan(self.outcomes[:, place])]
            if not len(known):
                raise ConfigError(f"no trace says how {agent!r} did", hint="leave the agent out, or run it on some of the tasks")
            if known.min() == known.max():
                raise ConfigError(
                    f"the {len(known)} known outcomes of {agent!r} are all the same", hint="a head learns from successes and failures"
                )


def examples_of(traces: Sequence[Trace], agents: Sequence[str]) -> Examples:
    """Convert traces to one example per prompt, in the order in which they are first met.

    Traces of the same prompt become one, with the mean of an agent's known scores: were they apart, a prompt that is held out would have
    been seen. It has the class of the first of them. Raises `ConfigError` for an agent that no trace tells of.
    """
    import numpy

    met = {agent for trace in traces for agent in trace.outcomes}
    unknown = [agent for agent in agents if agent not in met]
    if unknown or not agents:
        raise ConfigError(f"no trace tells of {', '.join(unknown) or 'any agent'}", hint=f"the traces tell of {', '.join(sorted(met))}")
    together: dict[str, list[Trace]] = {}
    for trace in traces:
        together.setdefault(trace.prompt, []).append(trace)
    outcomes = numpy.array([[_mean_score(group, agent) for agent in agents] for group in together.values()], dtype=numpy.float32)
    return Examples(list(together), tuple(agents), outcomes, classes=[group[0].task_class for group in together.values()])


def folds_of(prompts: Sequence[str], folds: int, seed: int) -> "Rows":
    """Assign each prompt to a fold, at random and of equal size but for one; the same prompt is always in the same fold."""
    import numpy

    places = {prompt: place for place, prompt in enumerate(dict.fromkeys(prompts))}
    drawn = numpy.random.default_rng(seed).permutation(len(places)) % folds
    return numpy.array([drawn[places[prompt]] for prompt in prompts], dtype=numpy.int64)


def _mean_score(traces: Sequence[Trace], agent: str) -> float:
    scores = [outcome.score for trace in traces if (outcome := trace.outcomes.get(agent)) is not None and outcome.score is not None]
    return sum(scores) / len(scores) if scores else float("nan")


PRIOR: Final = 10.0
"""Outcomes that the class above counts for."""
SURE: Final = 0.98
"""The most that a mean may be, and 1 minus the least."""
ALL: Final = ""
"""The class above all."""

ClassLogits = Mapping[str, tuple[float, ...]]
"""Log-odds of each agent, by class."""


def fit_classes(classes: Sequence[str], outcomes: "Floats") -> "tuple[ClassLogits, Floats]":
    """Return the agents' log-odds by class, and for each prompt the log-odds as if its outcomes had not been seen.

    `outcomes` has shape (prompts, agents), NaN where unknown. A class has the mean of its outcomes and of ten more, which are those of
    the
    class above it.
    """
    import numpy

    right, tried = numpy.nan_to_num(outcomes), (~numpy.isnan(outcomes)).astype(numpy.float32)
    sums: defaultdict[str, Floats] = defaultdict(lambda: numpy.zeros((2, outcomes.shape[1]), dtype=numpy.float32))
    for name, row in zip(classes, numpy.stack([right, tried], axis=1), strict=True):
        for level in (ALL, *lineage(name)):
            sums[level] += row
    nothing = numpy.zeros((2, outcomes.shape[1]), dtype=numpy.float32)
    known = {name: tuple(_logits(_mean(sums, name, nothing)).tolist()) for name in sums}
    unseen = [_mean(sums, name, row) for name, row in zip(classes, numpy.stack([right, tried], axis=1), strict=True)]
    return known, _logits(numpy.stack(unseen))


def _mean(sums: "Mapping[str, Floats]", name: str, without: "Floats") -> "Floats":
    """Return the mean outcomes in a class, without those of one prompt."""
    right, tried = sums[ALL] - without
    mean: Floats = (right + 0.5) / (tried + 1)
    for level in lineage(name):
        right, tried = sums[level] - without
        mean = (right + PRIOR * mean) / (tried + PRIOR)
    return mean


def _logits(means: "Floats") -> "Floats":
    import numpy

    clipped = numpy.clip(means, 1 - SURE, SURE)
    logits: Floats = numpy.log(clipped / (1 - clipped)).astype(numpy.float32)
    return logits


@dataclass(frozen=True, slots=True)
class DraftExamples:
    """Drafts with what all looks found, and how both agents did.

    `draft_scores` and `far_scores` have shape (examples,), from 0 to 1.
    """

    draft: str
    far: str
    looks: Sequence[Look]
    findings: Sequence[Mapping[str, Signal]]
    draft_scores: "Doubles"
    far_scores: "Doubles"
    left_out: int = 0
    """Traces in which one of both scores was unknown."""

    def part(self, rows: "Rows") -> "DraftExamples":
        """Return the examples of some rows."""
        findings = [self.findings[row] for row in rows]
        return DraftExamples(self.draft, self.far, self.looks, findings, self.draft_scores[rows], self.far_scores[rows])


def draft_examples_of(
    traces: Sequence[Trace], *, draft: str, far: str, opinions: Mapping[str, Cost], predict: Predict | None = None
) -> DraftExamples:
    """Return drafts of one agent as examples, judged by the free looks and by the opinions of other agents.

    Args:
        opinions: the cost of asking each of these agents, by name. Verdicts of judges are looks of their own, at their recorded cost.
        predict: the probabilities of a learned head that has not seen these traces; None: there is none.

    Traces in which the score of either agent is unknown are left out, and counted.
    """
    import numpy

    told = [trace for trace in traces if all(_score(trace, agent) is not None for agent in (draft, far))]
    findings = [_findings(trace, draft, opinions, predict) for trace in told]
    free = [name for name in FREE if any(found[name].measures for found in findings)]
    paid = {**opinions, **_verdict_costs([trace.outcomes[draft] for trace in told])}
    looks = [*(Look(name=name) for name in free), *(Look(name=name, cost=cost) for name, cost in paid.items())]
    return DraftExamples(
        draft=draft,
        far=far,
        looks=looks,
        findings=[{look.name: found.get(look.name, Signal()) for look in looks} for found in findings],
        draft_scores=numpy.array([_score(trace, draft) for trace in told], dtype=float),
        far_scores=numpy.array([_score(trace, far) for trace in told], dtype=float),
        left_out=len(traces) - len(told),
    )


def train_escalation(examples: DraftExamples, *, seed: int = 0, farthest: float = FARTHEST) -> EscalationCard:
    """Fit every set of looks, and how each further look moves the gain.

    `farthest`: deviations from the mean beyond which a measure counts no more.

    Raises `ConfigError` for fewer than 40 examples, outcomes that are all the same, or more than 5 paid looks.
    """
    _check(examples)
    looks = _learned(examples)
    paid = [look.name for look in looks if not look.is_free]
    fits = _Fits.of(examples, looks, seed=seed, farthest=farthest)
    fitted = {seen: fits.on(seen) for seen in sets_of(paid)}
    gains = {seen: gain for seen, (_, gain) in fitted.items()}
    return EscalationCard(
        draft=examples.draft,
        far=examples.far,
        looks=tuple(looks),
        fits=tuple(fit for fit, _ in fitted.values()),
        outlooks=tuple(
            _outlook(seen, look, before, gains[tuple(name for name in paid if name in seen or name == look)])
            for seen, before in gains.items()
            for look in paid
            if look not in seen
        ),
        traces=len(examples.findings),
        left_out=examples.left_out,
    )


def out_of_fold_gains(examples: DraftExamples, *, seed: int = 0) -> "Doubles":
    """Return P(far right) - P(draft right) of each example after all looks, from regressions that have not seen it. Raises what
    `train_escalation` raises."""
    _check(examples)
    looks = _learned(examples)
    return _Fits.of(examples, looks, seed=seed, farthest=FARTHEST).on([look.name for look in looks if not look.is_free])[1]


def _score(trace: Trace, agent: str) -> float | None:
    return trace.outcomes[agent].score if agent in trace.outcomes else None


def _findings(trace: Trace, agent: str, opinions: Mapping[str, Cost], predict: Predict | None) -> dict[str, Signal]:
    """Return what all looks find: those at tool calls, if the draft is such and the tools are known, else those at a text."""
    draft = trace.outcomes[agent]
    verdicts = {name: Signal({"log odds": log_odds(verdict.raw)}) for name, verdict in draft.verified.items()}
    probabilities = predict(trace.prompt) if predict is not None else None
    calls = read_calls(draft.answer) if trace.specs else None
    if calls is not None:
        found = call_findings(
            calls, trace.specs, prompt=trace.prompt, told=trace.prompt, confidence=draft.confidence, probabilities=probabilities
        )
        return found | verdicts | {other: _call_opinion(calls, trace, other) for other in opinions}
    found = free_findings(
        trace.prompt,
        draft.answer,
        answer=_extracted(draft),
        is_valid=draft.is_valid,
        is_grounded=draft.is_grounded,
        confidence=draft.confidence,
        probabilities=probabilities,
        output_characters=draft.output_characters,
    )
    answer = found[DRAFT].answer or Answer(())
    return found | verdicts | {other: _text_opinion(answer, trace, other) for other in opinions}


def _verdict_costs(drafts: Sequence[AgentOutcome]) -> dict[str, Cost]:
    """Return the mean cost of each verifier's verdicts."""
    names = sorted({name for draft in drafts for name in draft.verified})
    verdicts = {name: [draft.verified[name] for draft in drafts if name in draft.verified] for name in names}
    return {
        name: Cost(dollars=fmean(each.dollars for each in made), seconds=fmean(each.seconds for each in made))
        for name, made in verdicts.items()
    }


def _call_opinion(draft: Sequence[ToolCall], trace: Trace, agent: str) -> Signal:
    """Return an empty finding if there is no opinion. One in words says that no tool is needed."""
    other = trace.outcomes.get(agent)
    if other is None or other.answer is None:
        return Signal()
    return call_opinion(draft, read_calls(other.answer) or (), trace.specs, has_prose=other.has_prose)


def _text_opinion(draft: Answer, trace: Trace, agent: str) -> Signal:
    other = trace.outcomes.get(agent)
    if other is None:
        return Signal()
    return text_opinion(
        draft, other.answer, trace.prompt, answer=_extracted(other), is_valid=other.is_valid, output_characters=other.output_characters
    )


def _extracted(outcome: AgentOutcome) -> Answer | None:
    return None if outcome.extracted is None else Answer.of_found(outcome.extracted)


def _check(examples: DraftExamples) -> None:
    count = len(examples.findings)
    if count < LEAST_TRACES:
        left_out = f", {examples.left_out} are left out because an outcome is unknown" if examples.left_out else ""
        raise ConfigError(f"{count} traces are too few to learn from{left_out}", hint=f"at least {LEAST_TRACES}, better 500")
    for agent, scores in ((examples.draft, examples.draft_scores), (examples.far, examples.far_scores)):
        if scores.min() == scores.max():
            raise ConfigError(f"the outcomes of {agent!r} are all the same", hint="it is learned from successes and failures")
    paid = sum(not look.is_free for look in examples.looks)
    if paid > MOST_PAID_LOOKS:
        raise ConfigError(f"{paid} looks cost something", hint=f"name {MOST_PAID_LOOKS} at most")


def _learned(examples: DraftExamples) -> list[LearnedLook]:
    found = []
    for look in examples.looks:
        findings = [findings[look.name] for findings in examples.findings if look.name in findings]
        measures = dict.fromkeys(measure for finding in findings for measure in finding.measures)
        gives_answer = any(finding.answer is not None for finding in findings)
        found.append(LearnedLook(name=look.name, cost=look.cost, measures=tuple(measures), gives_answer=gives_answer))
    return found


@dataclass(frozen=True, slots=True)
class _Fits:
    """Fits regressions on sets of looks."""

    examples: DraftExamples
    looks: Sequence[LearnedLook]
    columns: Mapping[str, "Doubles"]
    """(examples, measures) by the name of a look: all sets that hold it read the same."""
    seed: int
    farthest: float

    @classmethod
    def of(cls, examples: DraftExamples, looks: Sequence[LearnedLook], *, seed: int, farthest: float) -> "_Fits":
        """Read what each look found."""
        import numpy

        columns = {look.name: numpy.array([measures_of_look(look, found) for found in examples.findings]) for look in looks}
        return cls(examples, looks, columns, seed, farthest)

    def on(self, seen: Sequence[str]) -> "tuple[Fit, Doubles]":
        """Fit the regressions on a set of looks, and return them with the gains that they predict out of fold."""
        import numpy

        looks = looks_of(self.looks, seen)
        crowds = numpy.array([measures_of_crowd(looks, found) for found in self.examples.findings])
        table = numpy.column_stack([*(self.columns[look.name] for look in looks), crowds])
        folds = numpy.random.default_rng(self.seed).permutation(len(table)) % FOLDS
        centre, scale = _standard(table)
        draft, draft_chance = _calibrated(table, self.examples.draft_scores, folds, self.farthest)
        far, far_chance = _calibrated(table, self.examples.far_scores, folds, self.farthest)
        fit = Fit(
            seen=tuple(seen),
            centre=_rounded(centre),
            scale=_rounded(scale),
            farthest=(self.farthest,) * len(centre),
            draft=_rounded(draft),
            far=_rounded(far),
        )
        return fit, far_chance - draft_chance


def _calibrated(table: "Doubles", scores: "Doubles", folds: "Rows", farthest: float) -> "tuple[Doubles, Doubles]":
    """Fit a regression on the standardised table. Return its weights and its predictions out of fold, both calibrated (Platt 1999)."""
    import numpy

    unseen = numpy.zeros(len(table))
    for fold in range(FOLDS):
        known, held = folds != fold, folds == fold
        centre, scale = _standard(table[known])
        weights = _regression(_filled(table[known], centre, scale, farthest), scores[known], PENALTY)
        unseen[held] = _filled(table[held], centre, scale, farthest) @ weights[:-1] + weights[-1]
    slope, bias = _regression(unseen[:, None], scores, 1.0)
    weights = _regression(_filled(table, *_standard(table), farthest), scores, PENALTY) * slope
    weights[-1] += bias
    return weights, _sigmoid(unseen * slope + bias)


def _regression(table: "Doubles", scores: "Doubles", penalty: float) -> "Doubles":
    """Fit a penalised logistic regression by Newton's method. Return the weights, the bias last."""
    import numpy

    inputs = numpy.column_stack([table, numpy.ones(len(table))])
    penalties = numpy.full(inputs.shape[1], penalty)
    penalties[-1] = 1e-3
    weights = numpy.zeros(inputs.shape[1])
    for _ in range(_STEPS):
        chances = _sigmoid(inputs @ weights)
        slope = inputs.T @ (chances - scores) + penalties * weights
        curvature = (inputs.T * (chances * (1 - chances))) @ inputs + numpy.diag(penalties)
        step = numpy.linalg.solve(curvature, slope)
        weights -= step
        if numpy.abs(step).max() < 1e-6:
            break
    return weights


def _standard(table: "Doubles") -> "tuple[Doubles, Doubles]":
    """Return mean and deviation of each column, over the rows in which it is known."""
    import numpy

    known = ~numpy.isnan(table)
    counts = numpy.maximum(known.sum(0), 1)
    centre = numpy.where(known, table, 0).sum(0) / counts
    deviation = numpy.sqrt((numpy.where(known, table - centre, 0) ** 2).sum(0) / counts)
    return centre, numpy.where(deviation > _LEAST_DEVIATION, deviation, 1.0)


def _filled(table: "Doubles", centre: "Doubles", scale: "Doubles", farthest: float) -> "Doubles":
    """Standardise the table; unknown values become the mean."""
    import numpy

    filled: Doubles = numpy.nan_to_num(numpy.clip((table - centre) / scale, -farthest, farthest))
    return filled


def _outlook(seen: tuple[str, ...], look: str, before: "Doubles", after: "Doubles") -> Outlook:
    """Group the examples by the gain before the look. A calibrated belief does not move on average, so the moves of a group cancel out."""
    import numpy

    groups = numpy.array_split(numpy.argsort(before, kind="stable"), GROUPS)
    shares = (numpy.arange(GROUPS) + 0.5) / GROUPS
    gains = [before[group].mean() for group in groups]
    moves = [numpy.quantile(after[group] - before[group], shares) for group in groups]
    return Outlook(seen=seen, look=look, gains=_rounded(numpy.array(gains)), moves=tuple(_rounded(move - move.mean()) for move in moves))


def _sigmoid(values: "Doubles") -> "Doubles":
    import numpy

    chances: Doubles = 1 / (1 + numpy.exp(-numpy.clip(values, -30, 30)))
    return chances


def _rounded(values: "Doubles") -> tuple[float, ...]:
    return tuple(float(f"{value:.{_DIGITS}g}") for value in values)
