"""The `[policy.privacy]` section: what becomes of private data on the way to a far agent."""

from enum import StrEnum
from typing import Literal

from pydantic import Field

from ....protocols.messages import Value

FindingType = Literal[
    "email", "card", "iban", "ssn", "national_id", "phone", "ip", "key", "birth_date", "address", "url", "person", "place", "group"
]  # fmt: skip


class OnFinding(StrEnum):
    """What is done where a text that is about to leave the device looks private, though nothing has called it so."""

    STAY = "stay"
    """It does not leave; a near agent goes on with the task."""
    PLACEHOLDER = "placeholder"
    """It leaves with placeholders where that was found."""
    ALLOW = "allow"
    """It leaves as it is, and the audit says what was found."""


class PrivacyConfig(Value):
    """How private data are kept from far agents of a task that is not private itself."""

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
    """Types of findings that count. That something could not be looked through always does."""
    spacy_model: str | None = None
    """The spaCy model with which Presidio finds names: a package or a folder on this machine. It takes the extra `presidio`."""
    patience: float = Field(default=5.0, gt=0, allow_inf_nan=False)
    """Seconds that looking through the texts of one request may take; what takes longer counts as a finding."""
    placeholders: bool = False
    """A far agent goes on with placeholders for what tools have returned that may not leave the device; otherwise a near one goes on."""
