"""When the supervised configurations of a sweep check: on schedule, by event, or never."""

from collections.abc import Iterator

from ...task.modes import Strategy
from ...task.policy import SupervisionConfig
from .outcomes import Outcomes


def paced(outcomes: Outcomes, world: str, strategy: Strategy) -> dict[int, str]:
    """Return one configuration of a strategy for each interval that it checks at, on schedule alone: the one with the shortest label."""
    found: dict[int, str] = {}
    for label, turns in _on_schedule(outcomes, world, strategy):
        if turns not in found or len(label) < len(found[turns]):
            found[turns] = label
    return found


def scheduled(outcomes: Outcomes, world: str) -> list[str]:
    """Return all configurations of pevr and eva that check on schedule alone."""
    return [label for strategy in (Strategy.PEVR, Strategy.EVA) for label, _ in _on_schedule(outcomes, world, strategy)]


def _on_schedule(outcomes: Outcomes, world: str, strategy: Strategy) -> Iterator[tuple[str, int]]:
    """Yield configurations that check on schedule alone, with the turns between two checks."""
    for label in outcomes.family(world, strategy):
        supervision = outcomes.supervision(world, label)
        if supervision is not None and supervision.interval is not None and not _waits_for_events(strategy, supervision):
            yield label, supervision.interval


def triggered(outcomes: Outcomes, world: str) -> list[str]:
    """Return the configurations of pevr and eva in which the supervisor speaks by event alone, apart from a plan before the first step."""
    labels = [(strategy, label) for strategy in (Strategy.PEVR, Strategy.EVA) for label in outcomes.family(world, strategy)]
    kinds = [(strategy, label, outcomes.supervision(world, label)) for strategy, label in labels]
    return [label for strategy, label, kind in kinds if kind is not None and kind.interval is None and _waits_for_events(strategy, kind)]


def plan_only(outcomes: Outcomes, world: str) -> str | None:
    """Return the configuration of pevr that plans and never checks."""
    for label in outcomes.family(world, Strategy.PEVR):
        supervision = outcomes.supervision(world, label)
        if supervision is not None and supervision.interval is None and not _waits_for_events(Strategy.PEVR, supervision):
            return label
    return None


def _waits_for_events(strategy: Strategy, supervision: SupervisionConfig) -> bool:
    return bool(supervision.triggers) or (strategy is Strategy.PEVR and supervision.plan_below is not None)
