"""Putting a chosen configuration into force."""

from collections.abc import Mapping
from typing import cast

from pydantic import JsonValue, ValidationError

from ....protocols import ConfigError
from ...task.arm import RESERVED, Arm
from ...task.task import Policy


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
