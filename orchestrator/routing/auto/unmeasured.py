"""Dollars of configurations that were never measured, from what is known of the agents that they are built of."""

from collections.abc import Mapping
from typing import Final

from ....protocols import Side
from ...task.arm import Arm
from ...task.modes import Strategy

SideDollars = Mapping[Side, float | None]
"""Dollars that a whole task was seen to take of the agent of each side; None: unknown."""

FAR_SHARES: Final[Mapping[Strategy, float]] = {
    Strategy.DEVICE: 0.0,
    Strategy.CLOUD: 1.0,
    Strategy.CASCADE: 1.0,
    Strategy.ROUTE: 0.5,
    Strategy.PEVR: 0.5,
    Strategy.EVA: 0.5,
    Strategy.MINIONS: 0.5,
    Strategy.SUBTASKS: 0.5,
}
"""Dollars of a strategy over those of far alone. Half is what the hybrids of docs/hybrid-study.md take in the dearer world; a cascade may
end with far doing everything."""
_UNKNOWN_FAR: Final = 0.01
"""Dollars of a task that far does alone, where nothing at all tells: not nothing."""


def unmeasured_dollars(arms: Mapping[str, Arm], measured: Mapping[str, float], sides: SideDollars) -> dict[str, float]:
    """Return the dollars to expect of each configuration that is not among the `measured` ones, by key.

    Where nothing was measured, all are 0: there is no outcome yet that dollars could be weighed against, and the default serves.
    """
    unknown = {key: arm for key, arm in arms.items() if key not in measured}
    if not measured:
        return dict.fromkeys(unknown, 0.0)
    near = measured.get(Strategy.DEVICE, sides.get(Side.NEAR)) or 0.0
    far = _far(arms, measured, sides, near)
    return {key: (near if arm.strategy is not Strategy.CLOUD else 0.0) + FAR_SHARES[arm.strategy] * far for key, arm in unknown.items()}


def _far(arms: Mapping[str, Arm], measured: Mapping[str, float], sides: SideDollars, near: float) -> float:
    """Return the dollars of a task that far does alone: as measured, as its agent was seen to take, or as hybrids make likely."""
    known = measured.get(Strategy.CLOUD, sides.get(Side.FAR))
    if known is not None:
        return known
    hybrids = [(arms[key].strategy, dollars) for key, dollars in measured.items()]
    likely = [max(dollars - near, 0.0) / FAR_SHARES[strategy] for strategy, dollars in hybrids if FAR_SHARES.get(strategy)]
    return max(likely, default=_UNKNOWN_FAR)
