"""`Selector`: `auto` as a `Hybrid` uses it, with the files that its configuration names."""

import logging
from collections.abc import Collection, Mapping, Sequence
from threading import Lock
from typing import cast

from pydantic import JsonValue, ValidationError

from ....protocols import ConfigError, NearfarError, Side
from ...task.modes import Strategy, TaskProfile
from ...task.policy import AutoConfig, Policy
from ...task.results import RESERVED, Arm, Result, SelectionDecision
from ...task.task import Task, last_words
from ...task.tools import Effect, Tool
from .chooser import Chooser
from .estimates import SideDollars
from .outcomes import Outcome, ReportLog, read_outcomes


def applied(arm: Arm, policy: Policy) -> Policy:
    """Return the policy that serves a task with an arm: the arm's knobs override the policy's own.

    Raises `ConfigError` for knobs that no policy has, and for those that are the user's alone.
    """
    reserved = sorted(set(arm.knobs) & set(RESERVED))
    if reserved:
        raise ConfigError(f"configuration {arm.key} sets {reserved[0]!r}", hint="that is for the policy to say, not for outcomes")
    current = cast("dict[str, JsonValue]", policy.model_dump(mode="json"))
    try:
        return Policy.model_validate({**_merged(current, arm.knobs), "strategy": arm.strategy})
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(map(str, first["loc"]))
        hint = "its outcomes were measured with another version; sweep again"
        raise ConfigError(f"configuration {arm.key} cannot be used: {where}: {first['msg']}", hint=hint) from error


def _merged(base: Mapping[str, JsonValue], over: Mapping[str, JsonValue]) -> dict[str, JsonValue]:
    """Return `base` with the values of `over`, merged section by section."""
    merged = dict(base)
    for name, value in over.items():
        section = merged.get(name)
        merged[name] = _merged(section, value) if isinstance(section, dict) and isinstance(value, dict) else value
    return merged


logger = logging.getLogger(__name__)


class Selector:
    """Settles tasks whose strategy is `auto`, and takes in what the app reports of them.

    Files are read once, when first needed. Calls may come from any thread.
    """

    def __init__(self) -> None:
        self._choosers: dict[AutoConfig, Chooser] = {}
        self._lock = Lock()

    def settle(self, task: Task, *, tools: Sequence[str], sides: Collection[Side], dollars: SideDollars) -> Task:
        """Return the task with a strategy, its knobs, and the reasons for them. `dollars`: what whole tasks were seen to take.

        Raises `ConfigError` for outcomes that cannot be read or used, `PrivacyViolation` where only a far agent is left for a private task.
        """
        if task.policy.strategy is not Strategy.AUTO:
            return task
        decision = self._decision(task, tools, sides, dollars, explores=True)
        settled = {"policy": applied(decision.chosen, task.policy), "reasons": (*task.reasons, *decision.reasons), "selection": decision}
        return task.model_copy(update=settled)

    def explain(self, task: Task, *, tools: Sequence[str], sides: Collection[Side], dollars: SideDollars) -> SelectionDecision:
        """Return the decision for a task without settling it, whatever its strategy. Raises what `settle` raises."""
        return self._decision(task, tools, sides, dollars, explores=False)

    def report(self, result: Result, settings: AutoConfig, *, score: float, task_class: str = "") -> None:
        """Learn how well a result was whose strategy `auto` chose, and keep it where the settings name a file.

        Raises `ConfigError` where the file cannot be written.
        """
        assert result.selection is not None, "the caller has looked"
        outcome = _outcome(result, result.selection, score, task_class)
        with self._lock:
            chooser = self._chooser(settings)
            if settings.reports is not None:
                ReportLog(settings.reports).append(outcome)
            chooser.learn(outcome)

    def _decision(
        self, task: Task, tools: Sequence[str], sides: Collection[Side], dollars: SideDollars, *, explores: bool
    ) -> SelectionDecision:
        """Return the chooser's decision, or the documented default where the chooser fails for a reason that is not the user's."""
        profile = _profile(task, tools)
        try:
            with self._lock:
                chooser = self._chooser(task.policy.auto)
                decide = chooser.choose if explores else chooser.explain
                return decide(profile, task.policy, sides=sides, dollars=dollars)
        except NearfarError:
            raise
        except Exception as error:  # the boundary of a task: what was learned may not keep it from being served
            logger.warning("auto failed and the default serves: %r", error)
            default = Chooser(AutoConfig()).explain(profile, task.policy, sides=sides)
            return default.model_copy(update={"reasons": (*default.reasons, f"auto failed ({error!r}), so the default serves")})

    def _chooser(self, settings: AutoConfig) -> Chooser:
        chooser = self._choosers.get(settings)
        if chooser is None:
            recorded = read_outcomes(settings.outcomes) if settings.outcomes is not None else []
            reported = ReportLog(settings.reports).read() if settings.reports is not None else []
            chooser = self._choosers[settings] = Chooser(settings, (*recorded, *reported))
        return chooser


def with_open_choice(task: Task, tools: Mapping[str, Tool]) -> Task:
    """Return the task with strategy `auto` if no strategy was chosen for it and it has a tool that is not declared read-only."""
    is_chosen = "strategy" in task.policy.model_fields_set
    if is_chosen or all(tool.declared.effect is Effect.READ for tool in tools.values()):
        return task
    return task.model_copy(update={"policy": task.policy.model_copy(update={"strategy": Strategy.AUTO})})


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
