"""Guards: why the answer to one question must not be given to another, however close the two are in meaning.

An embedding barely notices a `not`, a number, or two names that changed places, so closeness alone serves wrong answers. The guards
compare words instead and err on one side: a difference that they do not know to be harmless is an objection. Of a language that they do not
know, of code and of formulas, they let only the same words pass.
"""

from collections import Counter
from collections.abc import Iterable

from .wording import Wording
from .words import NEGATIONS, OPTIONAL


def objection(asked: str, stored: str) -> str | None:
    """Why the answer to the stored question is none to the asked one; None where no guard objects. The order of the two is of no matter."""
    mine, theirs = Wording.of(asked), Wording.of(stored)
    if mine.literal == theirs.literal and mine.is_english == theirs.is_english:
        return None
    if not (mine.is_english and theirs.is_english):
        return "language: the words differ, and the guards know only English sentences"
    if mine.questions != theirs.questions:
        return _against("question", mine.questions, theirs.questions)
    if mine.tense != theirs.tense:
        return _against("tense", mine.tense, theirs.tense)
    if mine.owners and theirs.owners and mine.owners != theirs.owners:
        return _against("owner", mine.owners, theirs.owners)
    return _content_objection(mine.content, theirs.content)


def _content_objection(mine: tuple[str, ...], theirs: tuple[str, ...]) -> str | None:
    if mine == theirs:
        return None
    only_mine, only_theirs = Counter(mine) - Counter(theirs), Counter(theirs) - Counter(mine)
    differing = {*only_mine, *only_theirs}
    if differing <= OPTIONAL and not (only_mine and only_theirs) and _needed(mine) == _needed(theirs):
        return None
    if not differing:
        return "order: the same words stand in another order"
    return _against(_kind(differing), only_mine, only_theirs)


def _needed(words: Iterable[str]) -> list[str]:
    return [word for word in words if word not in OPTIONAL]


def _kind(differing: Iterable[str]) -> str:
    """What sort of difference it is, for whoever reads the reason."""
    words = list(differing)
    if any(word in NEGATIONS for word in words):
        return "negation"
    return "number" if any(word[0].isdigit() for word in words) else "word"


def _against(kind: str, mine: Iterable[str], theirs: Iterable[str]) -> str:
    return f"{kind}: {' '.join(sorted(mine)) or 'nothing'} against {' '.join(sorted(theirs)) or 'nothing'}"
