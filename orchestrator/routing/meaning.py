"""Agreement of open-ended texts by meaning, and clusters of several samples.

Samples that mean the same are one cluster; the share of the draft's cluster says how sure the models are (semantic entropy, Kuhn et al.,
arXiv 2302.09664; clusters of black-box samples as a measure of trust, arXiv 2509.21837). Texts that contradict each other are never in one
cluster, however alike they are: embeddings hardly see a `not`, a number or a name.
"""

import re
from collections.abc import Callable, Sequence
from functools import cache, lru_cache
from typing import TYPE_CHECKING, Final

from ...protocols import ConfigError, JsonSchema
from ..task.evidence import AnswerSource
from .answers import Answer
from .quantities import UNSIGNED, fraction_of

if TYPE_CHECKING:
    from ..util.embedding.embedder import Vector

Embed = Callable[[str], "Vector"]
Embedder = Callable[[], Embed | None]
"""Gives the embedder when it is first needed; None: words are compared."""

LEAST_WORDS: Final = 8
"""Words from which a text counts as open-ended: shorter ones are compared word by word."""
SAME_MEANING: Final = 0.85
"""Cosine similarity of embeddings from which two texts mean the same. Of question pairs of Quora above it that do not contradict each
other, 82 % are labelled as the same (73 % above 0.75); two answers to one question are alike to begin with, so it is on the high side."""
SAME_WORDS: Final = 0.6
"""Overlap of words from which they do, where embeddings are not installed."""
_REMEMBERED: Final = 64
"""Texts whose embedding is kept: a draft is compared with every opinion."""
_READ: Final = 4_000
"""Characters of a text that are compared: half from either end."""
_WORD: Final = re.compile(r"[^\W\d_]{1,40}(?:['’][^\W\d_]{1,3})?")
_NUMBER: Final = re.compile(rf"(?<![\w.,]){UNSIGNED}(?![\w]|[.,]\d)")
_SENTENCE: Final = re.compile(r"(?<=[.!?:])\s{1,3}|\n{1,3}")
_NEGATIONS: Final = frozenset(
    """
    not no never none neither nor without cannot nothing nobody hardly nicht kein keine keinen nie ne pas jamais nunca ningún
    """.split()  # noqa: SIM905 - a word a line would be a hundred lines
)
_FILLERS: Final = frozenset(
    """
    a an the this that these those it its is are was were be been being am do does did have has had of in on at to for from by with as and
    or but if so than then there here i you he she we they them his her our your their my me us will would can could should may might must
    also very just more most some any all each which who whom what when where how why because since while about into over under out up down
    """.split()  # noqa: SIM905 - a word a line would be a hundred lines
)
_SPAN: Final = 3
"""Content words behind a negation that it may negate."""


def _stem(word: str) -> str:
    for ending in ("ing", "ed", "es", "s"):
        if word.endswith(ending) and len(word) - len(ending) >= 4:
            return word.removesuffix(ending)
    return word


_OPPOSITES: Final = {
    _stem(first): _stem(second)
    for pair in (
        """
increase decrease|increased decreased|higher lower|high low|before after|above below|true false|yes no|always never|allowed forbidden
safe unsafe|safe dangerous|legal illegal|possible impossible|accept reject|open closed|hot cold|win lose|won lost|buy sell|left right
first last|maximum minimum|larger smaller|faster slower|cheaper dearer|positive negative|agree disagree|correct incorrect|valid invalid
early late|earlier later|rise fall|rose fell|east west|north south|success failure
"""
    )
    .strip()
    .replace("\n", "|")
    .split("|")
    for first, second in (pair.split(), pair.split()[::-1])
}


@cache
def shipped_embedder() -> Embed | None:
    """Load the embedder that ships with nearfar; None where the packages that it needs are not installed."""
    try:
        from ..util.embedding.embedder import MiniLmEmbedder

        return lru_cache(_REMEMBERED)(MiniLmEmbedder().embed)
    except ConfigError:  # words are compared instead
        return None


def is_open_ended(answer: Answer) -> bool:
    """Return True for prose in which no answer was found."""
    found = answer.found
    return found is not None and found.source is AnswerSource.TEXT and len(_WORD.findall(found.text[:_READ])) >= LEAST_WORDS


def semantic_agreement(first: str, second: str, embed: Embed | None = None) -> float:
    """Return how far two texts mean the same, from 0 to 1; 0 where they contradict each other.

    Args:
        embed: makes unit vectors of texts; None: the share of content words in common (Dice) is taken.
    """
    first, second = _clipped(first), _clipped(second)
    if contradict(first, second):
        return 0.0
    if embed is None:
        return _overlap(set(_content(first)), set(_content(second)))
    return min(max(float(embed(first) @ embed(second)), 0.0), 1.0)


def graded(first: Answer, second: Answer, embedder: Embedder = shipped_embedder) -> float | None:
    """Return `semantic_agreement` of two open-ended answers; None where either is none."""
    if not (is_open_ended(first) and is_open_ended(second)):
        return None
    assert first.found is not None, "an open-ended answer was found in a text"
    assert second.found is not None, "an open-ended answer was found in a text"
    return semantic_agreement(first.found.text, second.found.text, embedder())


def mean_same(first: Answer, second: Answer, embedder: Embedder = shipped_embedder) -> bool:
    """Return True if two answers agree, or are open-ended texts that mean the same."""
    if first.agrees(second):
        return True
    grade = graded(first, second, embedder)
    return grade is not None and grade >= (SAME_WORDS if embedder() is None else SAME_MEANING)


def clusters(answers: Sequence[Answer], embedder: Embedder = shipped_embedder) -> list[list[int]]:
    """Return the places of the answers that mean the same, cluster by cluster, in the order of the answers.

    An answer joins the first cluster of which it means the same as every member. Empty answers are each by themselves.
    """
    found: list[list[int]] = []
    for place, answer in enumerate(answers):
        same = (group for group in found if all(mean_same(answer, answers[other], embedder) for other in group))
        group = next(same, None)
        if group is None:
            found.append([place])
        else:
            group.append(place)
    return found


def opinion_on(draft: Answer, text: str | None, *, prompt: str = "", schema: JsonSchema | None = None) -> Answer:
    """Find and return the answer of an opinion on a draft. Where the draft is open-ended, the opinion is taken as a whole."""
    opinion = Answer.of_text(text, prompt=prompt, schema=schema)
    if not is_open_ended(draft) or is_open_ended(opinion):
        return opinion
    whole = Answer.of_whole(text)
    return whole if is_open_ended(whole) else opinion


def cluster_share(draft: Answer, opinions: Sequence[Answer], embedder: Embedder = shipped_embedder) -> float:
    """Return the share of all samples, the draft included, that are in the draft's cluster."""
    return len(clusters([draft, *opinions], embedder)[0]) / (1 + len(opinions))


def contradict(first: str, second: str) -> bool:
    """Return True if one text denies what the other says, or either has numbers or names that the other has not.

    Numbers and names of one text that are all in the other contradict nothing: one may tell more.
    """
    for mine, other in ((_numbers(first), _numbers(second)), (_names(first), _names(second))):
        if mine - other and other - mine:
            return True
    words, others = _content(first), _content(second)
    denied, also = _denied(first), _denied(second)
    if (denied - also) & (set(others) - also) or (also - denied) & (set(words) - denied):
        return True
    return any(_OPPOSITES.get(word) in others and word not in others and _OPPOSITES[word] not in words for word in words)


def _clipped(text: str) -> str:
    return text if len(text) <= _READ else f"{text[: _READ // 2]}\n{text[-_READ // 2 :]}"


def _overlap(first: set[str], second: set[str]) -> float:
    return 2 * len(first & second) / (len(first) + len(second)) if first or second else 0.0


def _content(text: str) -> list[str]:
    """Return the words that carry meaning, without endings."""
    words = (word.casefold() for word in _WORD.findall(text))
    return [_stem(word) for word in words if word not in _FILLERS and not _negates(word)]


def _negates(word: str) -> bool:
    return word in _NEGATIONS or word.endswith(("n't", "n’t"))


def _denied(text: str) -> set[str]:
    """Return the content words that stand shortly behind a negation in their sentence."""
    denied: set[str] = set()
    for sentence in _SENTENCE.split(text):
        left = 0
        for word in (word.casefold() for word in _WORD.findall(sentence)):
            if _negates(word):
                left = _SPAN
            elif left and word not in _FILLERS:
                denied.add(_stem(word))
                left -= 1
    return denied


def _numbers(text: str) -> set[object]:
    return {value for found in _NUMBER.finditer(text) if (value := fraction_of(found[0])) is not None}


def _names(text: str) -> set[str]:
    """Return the capitalised words that do not open a sentence."""
    return {
        word.casefold()
        for sentence in _SENTENCE.split(text)
        for word in _WORD.findall(sentence)[1:]
        if word[0].isupper() and word.casefold() not in _FILLERS
    }
