"""Which configurations a task may get at all: privacy and mode come before what they are worth."""

from collections.abc import Collection

from ....protocols import Sensitivity, Side
from ...task.arm import RESERVED, Arm
from ...task.modes import Mode, Strategy
from ...task.profile import TaskProfile
from ...task.task import Policy


def objection_to(arm: Arm, profile: TaskProfile, policy: Policy, *, sides: Collection[Side]) -> str | None:
    """Return why a task under `policy` may not be served by `arm`, given the available sides; None if it may."""
    reserved = sorted(set(arm.knobs) & set(RESERVED))
    if reserved:
        return f"it sets {reserved[0]}, which is the user's to say"
    if arm.strategy is Strategy.AUTO:
        return "it would choose again"
    if arm.strategy is Strategy.MINIONS and (profile.tools or not profile.context_words):
        return "it reads a context, and uses no tools"
    objection = _objection_to_far(policy, sides) if arm.strategy is not Strategy.DEVICE else None
    if objection is None and arm.strategy is not Strategy.CLOUD:
        objection = _objection_to_near(policy, sides)
    return objection


def is_preferred(arm: Arm, mode: Mode) -> bool:
    """Return True if the arm uses the side that the mode prefers."""
    shunned = {Mode.PREFER_ON_DEVICE: Strategy.CLOUD, Mode.PREFER_IN_CLOUD: Strategy.DEVICE}
    return arm.strategy is not shunned.get(mode)


def _objection_to_far(policy: Policy, sides: Collection[Side]) -> str | None:
    """Return why the far side may not serve. Every strategy but `device` may show the task to the far side."""
    if policy.sensitivity is not Sensitivity.PUBLIC:
        return "the task is private and stays on this device"
    if policy.mode is Mode.ONLY_ON_DEVICE:
        return f"mode {policy.mode}"
    return None if Side.FAR in sides else "there is no far agent"


def _objection_to_near(policy: Policy, sides: Collection[Side]) -> str | None:
    """Return why the near side may not serve. Every strategy but `cloud` works on the near side."""
    if policy.mode is Mode.ONLY_IN_CLOUD:
        return f"mode {policy.mode}"
    return None if Side.NEAR in sides else "there is no near agent"
