"""`ConsolidationConfig`: when a device consolidates its memory, and how."""

from pydantic import Field

from ....protocols import DeviceState, PowerSource, Thermal
from ....protocols.messages import Value


class ConsolidationConfig(Value):
    """When and how memory is consolidated: the `[memory.sleep]` section of nearfar.toml."""

    minimum_battery: float = Field(default=0.8, ge=0, le=1)
    """Share of a full charge from which on a device that is not being charged may do it."""
    idle_seconds: float = Field(default=300, ge=0, allow_inf_nan=False)
    """Without a task, after which a `Hybrid` begins; and between two tries where the device is not ready."""
    settled_seconds: float = Field(default=3600, ge=0, allow_inf_nan=False)
    """Since the last turn of a session, after which it counts as finished; until then its last topic is left alone."""
    topic_tokens: int = Field(default=1200, gt=0)
    """Of the turns that are summed up together, at most, as we estimate them."""
    topic_similarity: float = Field(default=0.4, ge=-1, le=1)
    """Cosine similarity of neighbouring segments, below which the topic has changed."""
    summary_tokens: int = Field(default=160, gt=0)
    """Of a summary, at most."""
    keywords: int = Field(default=12, gt=0)
    """Of each topic."""
    related: float = Field(default=0.8, ge=-1, le=1)
    """Cosine similarity from which on a newer fact is held against an older one (LightMem, arXiv 2510.18866, has the same)."""
    most_related: int = Field(default=5, gt=0)
    """Newer facts that one fact is held against."""
    same: float = Field(default=0.92, ge=-1, le=1)
    """Cosine similarity from which on a newer fact may repeat an older one, if it has all of its words in the same order, too."""
    parallel: int = Field(default=4, gt=0)
    """Questions to the model at a time; never more than it makes progress on."""


def reason_to_wait(state: DeviceState, policy: ConsolidationConfig) -> str | None:
    """Why the device should not consolidate its memory now, or None. What is unknown is no reason to think that it is charged."""
    if state.thermal in (Thermal.SERIOUS, Thermal.CRITICAL):
        return f"the device is hot ({state.thermal})"
    if state.power_source is PowerSource.MAINS:
        return None
    if state.battery is None:
        return "it is not known whether the device is being charged"
    if state.battery < policy.minimum_battery:
        return f"the battery is at {state.battery:.0%} and not being charged"
    return None
