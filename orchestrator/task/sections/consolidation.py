"""The `[memory.sleep]` section."""

from pydantic import Field

from ....protocols import DeviceState, PowerSource, Thermal
from ....protocols.messages import Value


class ConsolidationConfig(Value):
    """When and how the memory is consolidated: the `[memory.sleep]` section of nearfar.toml."""

    minimum_battery: float = Field(default=0.8, ge=0, le=1)
    """Least battery charge, 0 to 1, of a device that consolidates without being charged."""
    idle_seconds: float = Field(default=300, ge=0, allow_inf_nan=False)
    """Seconds without a task after which a `Hybrid` begins, and between two tries if the device is not ready."""
    settled_seconds: float = Field(default=3600, ge=0, allow_inf_nan=False)
    """Seconds after the last turn of a session until it counts as finished; until then its last topic is left alone."""
    topic_tokens: int = Field(default=1200, gt=0)
    """Most tokens, by estimate, of the turns that are summed up together."""
    topic_similarity: float = Field(default=0.4, ge=-1, le=1)
    """Cosine similarity of neighbouring segments below which the topic has changed."""
    summary_tokens: int = Field(default=160, gt=0)
    """Most tokens of a summary."""
    keywords: int = Field(default=12, gt=0)
    """Most keywords of a topic."""
    related: float = Field(default=0.8, ge=-1, le=1)
    """Cosine similarity from which a newer fact is compared with an older one (as in LightMem, arXiv 2510.18866)."""
    most_related: int = Field(default=5, gt=0)
    """Most newer facts that one fact is compared with."""
    same: float = Field(default=0.92, ge=-1, le=1)
    """Cosine similarity from which a newer fact may repeat an older one, if it also has all of its words in the same order."""
    parallel: int = Field(default=4, gt=0)
    """Most questions to the model at a time, limited by the model's own parallelism."""


def reason_to_wait(state: DeviceState, policy: ConsolidationConfig) -> str | None:
    """Return why the device should not consolidate its memory now, or None. A device of unknown power source does not count as charged."""
    if state.thermal in (Thermal.SERIOUS, Thermal.CRITICAL):
        return f"the device is hot ({state.thermal})"
    if state.power_source is PowerSource.MAINS:
        return None
    if state.battery is None:
        return "it is not known whether the device is being charged"
    if state.battery < policy.minimum_battery:
        return f"the battery is at {state.battery:.0%} and not being charged"
    return None
