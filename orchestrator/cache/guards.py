"""Guards: reasons why the answer to one question must not be given to another, however close the two are in meaning.

An embedding barely notices a `not`, a number, or two names that changed places, so closeness alone serves wrong answers. The guards
compare words instead, and fail closed: they pass two questions only where a short list of harmless changes (`wording`) explains every
difference between them. A change that is not listed is an objection.
"""

from .kinds import kind_of
from .wording.canonical import Canonical


def objection(asked: str, stored: str) -> str | None:
    """Return why the answer to the stored question does not answer the asked one; None where no guard objects. Symmetric."""
    mine, theirs = Canonical.of(asked), Canonical.of(stored)
    if mine.asks_the_same_as(theirs):
        return None
    if not (mine.is_english and theirs.is_english):
        return "language: the words differ, and the guards know only plain English"
    return kind_of(mine.text, theirs.text)
