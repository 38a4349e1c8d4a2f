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
from ..task.decisions import AnswerSource
from .answers import Answer
from .quantities import NUMBER_WORDS, UNSIGNED, fraction_of

if TYPE_CHECKING:
    from ..util.embedding import Vector

Embed = Callable[[str], "Vector"]
Embedder = Callable[[], Embed | None]
"""Gives the embedder when it is first needed; None: words are compared."""

LEAST_WORDS: Final = 8
"""Words from which a text counts as open-ended: shorter ones are compared word by word."""
SAME_MEANING: Final = 0.85
"""Cosine similarity of embeddings from which two texts mean the same. Of question pairs of Quora above it that do not contradict each
other, 78 % are labelled as the same (68 % above 0.75); two answers to one question are alike to begin with, so it is on the high side."""
SAME_WORDS: Final = 0.6
"""Overlap of words from which they do, where embeddings are not installed."""
_REMEMBERED: Final = 64
"""Texts whose embedding is kept: a draft is compared with every opinion."""
_READ: Final = 4_000
"""Characters of a text that are compared: half from either end."""
_WORD: Final = re.compile(r"[^\W\d_]{1,40}(?:['’][^\W\d_]{1,3})?")
_NUMBER: Final = re.compile(rf"(?<![\w.,])[-−]?{UNSIGNED}(?![\w]|[.,]\d)")
_SENTENCE: Final = re.compile(r"(?<=[.!?:])\s{1,3}|\n{1,3}")
_NEGATIONS: Final = frozenset(
    """
    not no never none neither nor without cannot nothing nobody hardly nicht kein keine keinen nie ne pas jamais nunca ningún
    non niet geen não nem inte ikke ingen не нет ни
    """.split()  # noqa: SIM905 - a word a line would be a hundred lines
)
_FILLERS: Final = frozenset(
    """
    a an the this that these those it its is are was were be been being am do does did have has had of in on at to for from by with as and
    or but if so than then there here i you he she we they them his her our your their my me us will would can could should may might must
    also very just each which who whom what when where how why because since while about into
    """.split()  # noqa: SIM905 - a word a line would be a hundred lines
)
_SET_APART: Final = re.compile(r"```[^`]{1,2000}```|`([^`\n]{1,400})`|^\s{0,3}\|[^\n]{1,400}", re.MULTILINE)
"""Code, and rows of tables."""
_OPERATOR: Final = re.compile(r"\s([<>=!+*/%^&|≤≥≠-]{1,3})(?=\s)")
_PREFIXES: Final = ("un", "in", "im", "il", "ir", "dis", "non")
_SPAN: Final = 3
"""Content words behind a negation that it may negate."""


def _stem(word: str) -> str:
    for ending in ("ing", "ed", "es", "s"):
        if word.endswith(ending) and len(word) - len(ending) >= 4:
            return word.removesuffix(ending)
    return word


_OPPOSITES: Final = frozenset(
    (_stem(first), _stem(second))
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
)


@cache
def shipped_embedder() -> Embed | None:
    """Load the embedder that ships with nearfar; None where the packages that it needs are not installed."""
    try:
        from ..util.embedding import MiniLmEmbedder

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
    """Return True if one text denies what the other says, either has numbers or names that the other has not, or both are the same but for
    a few words.

    Numbers and names of one text that are all in the other contradict nothing: one may tell more.
    """
    for told in (_numbers, _names, _operators, _set_apart):
        mine, other = told(first), told(second)
        if mine - other and other - mine:
            return True
    words, others = _content(first), _content(second)
    if _is_varied(words, others):
        return True
    denied, also = _denied(first), _denied(second)
    if (denied - also) & (set(others) - also) or (also - denied) & (set(words) - denied):
        return True
    only, other_only = set(words) - set(others), set(others) - set(words)
    return any((word, other) in _OPPOSITES or _negated_by_prefix(word, other) for word in only for other in other_only)


def _is_varied(words: Sequence[str], others: Sequence[str]) -> bool:
    """Return True for two texts of the same words in another order, or in the same places but for at most half of them.

    It takes more than an embedding to tell a synonym from another thing, or the buyer from the seller.
    """
    if len(words) != len(others):
        return False
    if sorted(words) == sorted(others):
        return words != others
    varied = sum(word != other for word, other in zip(words, others, strict=True))
    return 0 < varied <= len(words) / 2


def _negated_by_prefix(word: str, other: str) -> bool:
    longer, shorter = sorted((word, other), key=len, reverse=True)
    return len(shorter) > _SPAN and longer.endswith(shorter) and longer.removesuffix(shorter) in _PREFIXES


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
    digits: set[object] = {value for found in _NUMBER.finditer(text) if (value := fraction_of(found[0].replace("−", "-"))) is not None}
    words = {word.casefold() for word in _WORD.findall(text)}
    return digits | {value for word, value in NUMBER_WORDS.items() if word in words and value > 1}


def _operators(text: str) -> set[object]:
    return set(_OPERATOR.findall(text))


def _set_apart(text: str) -> set[object]:
    """Return code without its spaces, and rows of tables."""
    return {"".join(found[0].split()) for found in _SET_APART.finditer(text)}


def _names(text: str) -> set[object]:
    """Return the capitalised words that do not open a sentence."""
    return {
        word.casefold()
        for sentence in _SENTENCE.split(text)
        for word in _WORD.findall(sentence)[1:]
        if word[0].isupper() and word.casefold() not in _FILLERS
    }
