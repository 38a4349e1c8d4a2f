"""Records of how a draft was weighed: by a card, and by the answer of the far agent that it was escalated to."""

from collections.abc import Mapping

from pydantic import Field

from ...protocols.steps import Value


class WeighedDraft(Value):
    """A card's probabilities about a draft, before outcomes corrected them."""

    card: str
    """File of the card; empty: the default card."""
    p_draft: float = Field(ge=0, le=1)
    """Probability that the draft is right."""
    p_far: float = Field(ge=0, le=1)
    """Probability that the far agent would be right."""


class Arbitration(Value):
    """A far agent's verdict on a draft that was escalated to it, by its own answer."""

    by: str
    """Name of the far agent."""
    confirmed: bool
    """It gives the same answer."""
    draft_weight: float = Field(ge=0, le=1)
    """Weight of the label that the draft is right, or wrong where it was not confirmed."""
    far_weight: float = Field(ge=0, le=1)
    """Weight of the same label of the far answer."""
    opinions: Mapping[str, bool] = {}
    """Second opinions that give the far agent's answer, by their agents' names."""
