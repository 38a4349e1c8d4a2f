"""The `[policy.privacy]` section: private data on the way to a far agent."""

from enum import StrEnum
from typing import Literal

from pydantic import Field

from ....protocols.messages import Value

FindingType = Literal[
    "email", "card", "iban", "ssn", "national_id", "phone", "ip", "key", "birth_date", "address", "url", "person", "place", "group"
]  # fmt: skip


class OnFinding(StrEnum):
    """Treatment of outbound texts in which a detector finds private data that no label covers."""

    STAY = "stay"
    """The text does not leave; a near agent continues the task."""
    PLACEHOLDER = "placeholder"
    """The text leaves with placeholders for the findings."""
    ALLOW = "allow"
    """The text leaves as it is, and the outbound log lists the findings."""


class PrivacyConfig(Value):
    """Protection of private data in tasks that are not private themselves: the `[policy.privacy]` section."""

    findings: OnFinding = OnFinding.STAY
    detect: tuple[FindingType, ...] = (
        "email",
        "card",
        "iban",
        "ssn",
        "national_id",
        "phone",
        "ip",
        "key",
        "birth_date",
        "address",
        "person",
    )
    """Types of findings that count; a text that could not be scanned always does."""
    spacy_model: str | None = None
    """Package or folder of the spaCy model with which Presidio finds names (the extra `presidio`); None: names are not looked for."""
    patience: float = Field(default=5.0, gt=0, allow_inf_nan=False)
    """Seconds that scanning the texts of one request may take; a text that takes longer counts as a finding."""
    placeholders: bool = False
    """Let a far agent continue with placeholders for private tool results; false: a near agent continues."""
