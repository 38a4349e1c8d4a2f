"""Score at 10, 20 and 30 % far over one mixed stream of real tasks with drafts, through the router as a `Hybrid` uses it."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import permutations
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy

from nearfar.orchestrator.lab.replay import RecordedAgent
from nearfar.orchestrator.lab.statistics import percentile_interval
from nearfar.orchestrator.routing import Router
from nearfar.orchestrator.routing.budget import FarShareController
from nearfar.orchestrator.routing.drafts import DRAFT_ROLE, FAR_ROLE, OPINION_ROLES, DraftChoice, bind
from nearfar.orchestrator.routing.escalation import Escalation, EscalationCard
from nearfar.orchestrator.routing.looks import Signal
from nearfar.orchestrator.routing.success import length_gain
from nearfar.orchestrator.routing.training import DraftExamples
from nearfar.orchestrator.task import Task, as_messages
from nearfar.orchestrator.task.decisions import RouteDecision
from nearfar.orchestrator.task.modes import Strategy
from nearfar.orchestrator.task.policy import Policy
from nearfar.orchestrator.task.routing_policy import RouterConfig
from nearfar.protocols import Sensitivity, Side

from .budget import WINDOW, LinearHead, inputs_of
from .evidence_answers import SETS, answer_examples
from .evidence_calls import NEAR, XLAM_1B, XLAM_7B, Calls, prompt_of
from .evidence_measures import folds, read_rows, trained
from .role_cards import LICENCES, QUICK_STEP, by_role_examples, role_card, role_examples
from .supervised_streams import share_errors, worst_error

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[numpy.float64]
    Flags = NDArray[numpy.bool_]
    Rows = NDArray[numpy.int64]

SHARES: Final = (0.1, 0.2, 0.3)
_DEFAULT: Final = "{}"
"""Name of the figures without labels of these tasks: by a card by role, learned from the drafts of the other sets as the shipped one is."""
_CARDS: Final = "{}_trained"
_OURS: Final = (_DEFAULT, _CARDS)
_RESAMPLES: Final = 1000
_TIE: Final = 1e-3
_AGENTS: Final = (RecordedAgent("near", Side.NEAR), RecordedAgent("far", Side.FAR))


def figures(folder: Path, *, quick: bool) -> dict[str, Any]:
    """Points over random routing at the same realised share, by what the gain is taken from, and the error of the share.

    A quick run takes every other task, in one order, by cards of every fourth.
    """
    tasks = _Mixed.of(folder, step=2 if quick else 1, card_step=QUICK_STEP if quick else 1)
    mixed = [numpy.random.default_rng(seed).permutation(len(tasks.near)) for seed in range(1 if quick else 10)]
    shifted = [] if quick else list(tasks.shifts())
    found: dict[str, Any] = {}
    errors: dict[str, float] = {}
    for name, way in tasks.ways.items():
        for share in SHARES:
            far = [way(order, share) for order in mixed]
            often = numpy.mean([_in_order(order, went) for order, went in zip(mixed, far, strict=True)], axis=0)
            found[_figure(name, share)] = tasks.points(often)
            if name in _OURS:
                far += [way(order, share) for order in shifted]
                errors[name] = max(errors.get(name, 0.0), *(worst_error(went, share) for went in far))
    supervised = share_errors(quick=quick)
    return {
        **found,
        "least_points_over_head": min(_value(found, name, share) - _value(found, "head_{}", share) for name in _OURS for share in SHARES),
        "share_error": round(max(*errors.values(), *supervised.values()), 6),
        "share_error_supervised": {name: round(error, 6) for name, error in supervised.items()},
    }


def _value(found: Mapping[str, Any], name: str, share: float) -> float:
    value: float = found[_figure(name, share)]["value"]
    return value


def _figure(name: str, share: float) -> str:
    return name.format(f"points_over_random_{round(100 * share)}")


Way = Callable[["Rows", float], "Flags"]
"""How a stream, given by the rows of its tasks, is served at a share: which of its tasks go far, in the order of the stream."""


@dataclass(frozen=True, slots=True)
class _Mixed:
    """The tasks of all sets, with what each way to route them takes for the gain."""

    prompts: Sequence[str]
    near: "Floats"
    """Whether the draft is right."""
    far: "Floats"
    sets: "Rows"
    """Number of the set that the task belongs to."""
    ways: Mapping[str, Way]
    """By the name of their figures."""

    @classmethod
    def of(cls, folder: Path, *, step: int, card_step: int) -> "_Mixed":
        """Read every `step`-th task of each set. Cards of other sets are learned on every `card_step`-th of theirs."""
        sets = list(_sets(folder, step, card_step))
        prompts = [prompt for each in sets for prompt in each.prompts]
        trained = _Judged.joined([each.trained() for each in sets])
        unlearned = _Judged.joined([each.unlearned() for each in sets])
        disagrees = numpy.concatenate([each.disagrees for each in sets])
        lengths = numpy.array([length_gain(prompt) for prompt in prompts])
        drafts = _Drafts(prompts, disagrees.tolist())
        return cls(
            prompts=prompts,
            near=numpy.concatenate([each.examples.draft_scores for each in sets]),
            far=numpy.concatenate([each.examples.far_scores for each in sets]),
            sets=numpy.repeat(numpy.arange(len(sets)), [len(each.prompts) for each in sets]),
            ways={
                _DEFAULT: partial(drafts.by_cards, unlearned),
                _CARDS: partial(drafts.by_cards, trained),
                "checks_{}": drafts.by_checks,
                "head_{}": _by_gain(numpy.concatenate([each.head_gains() for each in sets])),
                "length_{}": _by_gain(lengths),
                "disagreement_length_{}": _by_gain(disagrees + _TIE * lengths),
            },
        )

    def points(self, far: "Floats") -> dict[str, float]:
        """Return the points over random routing, with their 95 % bootstrap interval over tasks. `far`: how often each task went far."""
        gains = self.far - self.near
        random = numpy.random.default_rng(0)
        drawn = random.integers(0, len(gains), (_RESAMPLES, len(gains)))
        resampled = [_points(far[rows], gains[rows]) for rows in drawn]
        return percentile_interval(_points(far, gains), resampled).model_dump()

    def shifts(self) -> "Iterator[Rows]":
        """Yield streams in which one set follows the other abruptly."""
        random = numpy.random.default_rng(1)
        for order in permutations(range(self.sets.max() + 1)):
            yield numpy.concatenate([random.permutation(numpy.flatnonzero(self.sets == number)) for number in order])


@dataclass(frozen=True, slots=True)
class _Judged:
    """Cards that judge drafts, and what their looks find."""

    cards: Sequence[Escalation]
    """For each task."""
    findings: Sequence[Mapping[str, Signal]]

    @classmethod
    def joined(cls, parts: "Sequence[_Judged]") -> "_Judged":
        return cls([card for part in parts for card in part.cards], [found for part in parts for found in part.findings])


@dataclass(frozen=True, slots=True)
class _TaskSet:
    """Tasks of one kind, with drafts and at least one opinion on each."""

    prompts: Sequence[str]
    examples: DraftExamples
    usual: str
    """The model that gives an opinion where only one does."""
    elsewhere: EscalationCard
    """A card by role, learned from other sets."""

    @property
    def disagrees(self) -> "Floats":
        """1 where the usual second model answers otherwise."""
        return numpy.array([1 - found[self.usual].measures["agrees"] for found in self.examples.findings])

    def trained(self) -> _Judged:
        """For each task, a card that was trained on other folds."""
        cards: dict[int, Escalation] = {}
        for part in trained(self.examples):
            cards |= dict.fromkeys(part.held.tolist(), part.escalation)
        return _Judged([cards[row] for row in range(len(self.prompts))], self.examples.findings)

    def unlearned(self) -> _Judged:
        """For each task, the card of the other sets, with the usual opinion."""
        card = Escalation(bind(self.elsewhere, draft=DRAFT_ROLE, far=FAR_ROLE, opinions=OPINION_ROLES[:1]))
        known = by_role_examples(self.examples, [(self.usual,)] * len(self.prompts))
        return _Judged([card] * len(self.prompts), known.findings)

    def head_gains(self) -> "Floats":
        """Gains by a head that reads the prompt alone, trained on the other folds."""
        outcomes = numpy.stack([self.examples.draft_scores, self.examples.far_scores], axis=1)
        inputs, gains = inputs_of(self.prompts), numpy.zeros(len(self.prompts))
        for known, held in folds(len(self.prompts)):
            expected = LinearHead(inputs[known], outcomes[known]).predict(inputs[held])
            gains[held] = expected[:, 1] - expected[:, 0]
        return gains


def _sets(folder: Path, step: int, card_step: int) -> Iterator[_TaskSet]:
    answers = {f"{name.split()[0]}.jsonl.gz": role_examples(folder, name, step=card_step) for name in LICENCES}
    calls = Calls(read_rows(folder / "bfcl.jsonl.gz")[::step])
    examples = calls.examples(XLAM_1B, [model for model in NEAR if model != XLAM_1B])
    yield _TaskSet([prompt_of(row) for row in calls.rows], examples, XLAM_7B, role_card(list(answers.values())))
    for answer_set in SETS:
        rows = read_rows(folder / answer_set.file)[::step]
        draft, opinion = answer_set.usual
        examples = answer_examples(rows, draft, [opinion], answer_set.far)
        elsewhere = role_card([known for file, known in answers.items() if file != answer_set.file])
        yield _TaskSet([row["prompt"] for row in rows], examples, opinion, elsewhere)


@dataclass(frozen=True, slots=True)
class _Drafts:
    """Drafts that are judged as a cascade judges them, each under a router of its stream."""

    prompts: Sequence[str]
    disagrees: Sequence[float]

    def by_checks(self, order: "Rows", share: float) -> "Flags":
        """Serve a stream by the fixed checks: only whether the second model agrees is known."""

        def escalates(choice: DraftChoice, row: int) -> bool:
            agrees = not self.disagrees[row]
            return choice.weigh_checks(None if agrees else "the other answers otherwise", agrees=agrees, confidence=None).escalates

        return self._served(order, share, escalates)

    def by_cards(self, judged: _Judged, order: "Rows", share: float) -> "Flags":
        """Serve a stream with cards, which take a look at a time."""

        def escalates(choice: DraftChoice, row: int) -> bool:
            card, found = judged.cards[row], judged.findings[row]
            paid = {look.name for look in card.card.looks if not look.is_free}
            seen = {name: finding for name, finding in found.items() if name not in paid}
            while (verdict := choice.weigh(card, seen)).look is not None:
                seen[verdict.look] = found[verdict.look]
            return verdict.action == "escalate"

        return self._served(order, share, escalates)

    def _served(self, order: "Rows", share: float, escalates: Callable[[DraftChoice, int], bool]) -> "Flags":
        router, policy = Router(seed=0), _policy(share)
        return numpy.array([self._goes_far(router, policy, int(row), escalates) for row in order])

    def _goes_far(self, router: Router, policy: Policy, row: int, escalates: Callable[[DraftChoice, int], bool]) -> bool:
        task = Task(messages=as_messages(self.prompts[row]), policy=policy)
        decision: RouteDecision = router.decide(task, _AGENTS)
        return decision.candidates[0] == "far" or escalates(DraftChoice(router.drafts, task, decision, "far"), row)


def _policy(share: float) -> Policy:
    return Policy(strategy=Strategy.CASCADE, sensitivity=Sensitivity.PUBLIC, router=RouterConfig(far_share=share))


def _by_gain(gains: "Floats") -> Way:
    """Serve a stream by one number for each task, which is known before any draft."""

    def served(order: "Rows", share: float) -> "Flags":
        controller, far = FarShareController(share, WINDOW), []
        for gain in gains[order].tolist():
            far.append(gain > controller.threshold)
            controller.observe(gain, went_far=far[-1])
        return numpy.array(far)

    return served


def _in_order(order: "Rows", far: "Flags") -> "Floats":
    """Return 1 for each task that went far, in the order of the recording."""
    found = numpy.zeros(len(order))
    found[order] = far
    return found


def _points(far: "Floats", gains: "Floats") -> float:
    return float(100 * ((far * gains).mean() - far.mean() * gains.mean()))
