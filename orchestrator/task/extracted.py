"""The answer that was found in a text, as results and records tell it."""

from enum import StrEnum

from ...protocols.steps import Value


class AnswerSource(StrEnum):
    """The part of a text that is taken as the answer, from the surest to the last resort."""

    FIELD = "field"
    """A field of a JSON object."""
    BOXED = "boxed"
    """`\\boxed{...}`."""
    ANSWER_LINE = "answer line"
    """After "Answer:", "The answer is" or the like."""
    CHOICE = "choice"
    """The letter of one of the prompt's choices."""
    DATE = "date"
    """The date or time that was asked for."""
    CODE_BLOCK = "code block"
    """A value in a closing code block."""
    EMPHASIS = "emphasis"
    """A value set off in bold, in a formula, or on a line of its own."""
    NUMBER = "number"
    """The last number of a worked solution."""
    ENTITY = "entity"
    """The value or name that a closing sentence comes to."""
    TEXT = "text"
    """The whole text."""


class ExtractedAnswer(Value):
    """The answer that was found in a text."""

    source: AnswerSource
    """The part of the text that it was taken from."""
    text: str
    """The answer as it was written."""
    name: str = ""
    """Name of the field; empty where it was none."""

    def __str__(self) -> str:
        return f"{self.text[:80]} ({self.name or self.source})"
