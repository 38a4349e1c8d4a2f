"""`Selector`: `auto` as a `Hybrid` uses it, with the files that its settings name."""

from collections.abc import Collection, Sequence

from ...protocols import Side
from ..policy import Strategy
from ..results import Result
from ..task import Task
from .application import applied
from .chooser import Chooser
from .decision import SelectionDecision
from .outcomes import Outcome, ReportLog, read_outcomes
from .profile import TaskProfile, last_words
from .settings import AutoPolicy


class Selector:
    """Settles tasks whose strategy is `auto`, and takes in what the app reports of them. Files are read once, when first needed."""

    def __init__(self) -> None:
        self._choosers: dict[AutoPolicy, Chooser] = {}

    def settle(self, task: Task, *, tools: Sequence[str], sides: Collection[Side]) -> Task:
        """The task with a strategy, its knobs, and the reasons for them.

        Raises `ConfigError` for outcomes that cannot be read or used, `PrivacyViolation` where only a far agent is left for a private task.
        """
        if task.policy.strategy is not Strategy.AUTO:
            return task
        decision = self._chooser(task.policy.auto).choose(_profile(task, tools), task.policy, sides=sides)
        settled = {"policy": applied(decision.chosen, task.policy), "reasons": (*task.reasons, *decision.reasons), "selection": decision}
        return task.model_copy(update=settled)

    def explain(self, task: Task, *, tools: Sequence[str], sides: Collection[Side]) -> SelectionDecision:
        """What the task would be settled to, whatever its strategy. Raises what `settle` raises."""
        return self._chooser(task.policy.auto).explain(_profile(task, tools), task.policy, sides=sides)

    def report(self, result: Result, settings: AutoPolicy, *, score: float, task_class: str = "") -> None:
        """Learn how well a result was whose strategy `auto` chose, and keep it where the settings name a file.

        Raises `ConfigError` where the file cannot be written.
        """
        assert result.selection is not None, "the caller has looked"
        outcome = _outcome(result, result.selection, score, task_class)
        chooser = self._chooser(settings)
        if settings.reports is not None:
            ReportLog(settings.reports).append(outcome)
        chooser.learn(outcome)

    def _chooser(self, settings: AutoPolicy) -> Chooser:
        chooser = self._choosers.get(settings)
        if chooser is None:
            recorded = read_outcomes(settings.outcomes) if settings.outcomes is not None else []
            reported = ReportLog(settings.reports).read() if settings.reports is not None else []
            chooser = self._choosers[settings] = Chooser(settings, (*recorded, *reported))
        return chooser


def _profile(task: Task, tools: Sequence[str]) -> TaskProfile:
    return TaskProfile.of(last_words(task.messages), tools, context_words=len((task.context or "").split()))


def _outcome(result: Result, selection: SelectionDecision, score: float, task_class: str) -> Outcome:
    return Outcome(
        task_class=task_class or selection.task_class,
        profile=selection.profile,
        arm=selection.chosen,
        label=selection.winner.label,
        score=score,
        dollars=None if result.dollars is None else float(result.dollars),
    )
