"""Find the checkable facts of a text (numbers, identifiers, names), and score the parts of a conversation by what they say that is new."""

import math
import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import Final

from .conversation import Conversation, Group

_WORDS: Final = """
the a an of to in and is are was were be been for on that this these those with as by at from it its or which what who whom whose how many
much when where why if then than so but not no all any each he she they his her him their them you your we our us i me my has have had do
does did can could will would shall should may might must there here about into over after before between
"""
FUNCTION_WORDS: Final = frozenset(_WORDS.split())


_WORD: Final = re.compile(r"[\w@.+'’-]*\w")
_GROUPED: Final = re.compile(r"(?<=\d),(?=\d{3}\b)")
_CLOSING_ZEROS: Final = re.compile(r"(\.\d*?)0+$")
_OPENING: Final = frozenset(".!?:;\n-*•\"'“‘([{#>")
"""Characters before the first word of a sentence, a quotation or a line."""
_PREDICATE: Final = re.compile(r"\s+(?:is|was|has|had|are|were|will|did|does|can|[A-Z]\w+)\b")
"""Text after the first word of a sentence that makes this word likely a name."""
_NOT_NAMES: Final = FUNCTION_WORDS | {"also", "assistant", "tool", "user", "yes"}
"""Words that open sentences and are never names."""
_UNUSUAL: Final = re.compile(r"(?<![\w@.+'’-])(?![a-z]+[@.+'’-]*(?![\w@.+'’-]))[\w@.+'’-]*\w")
"""Words that are not made of small letters alone; all other words are no facts."""
_CODED: Final = re.compile(r"[\d_@]")


_TERM: Final = re.compile(r"\w{2,}")
_DIGIT: Final = re.compile(r"\d")
_STEM: Final = 6
"""Characters of a word by which it is compared: a stemmer that knows no language."""
_STEMMED: Final = "~"
"""Stands before a stem, where facts and stems are kept together."""
RELEVANCE: Final = 5.0
"""Worth of a piece that has all words of the question."""
FACT: Final = 1.0
"""Worth of a number, an identifier or a name that occurs nowhere else."""
TERM: Final = 0.3
"""Worth of any other word that occurs nowhere else."""
LEAST_QUESTION: Final = 20.0
"""Weight of all words of a question together; a question with less says little of what is needed."""
ROLE: Final = {"user": 0.35, "assistant": 0.2, "tool": 0.1}
"""Worth of forty tokens, by role."""
RECENCY: Final = 1.0
"""Worth of forty tokens of the last message; half of it for each further message back."""
CURRENT: Final = 3.0
"""Worth of forty tokens of the last message if it is the result of a call, from which the agent is about to continue."""
CALL: Final = 1.5
"""Worth of knowing that a call was made, in addition to the facts in its arguments: an agent that does not know it repeats the call."""
LATER: Final = 0.5
"""Weight of a word of the last turns, relative to a word of the user's last message."""
CODED: Final = 4.0
"""Weight of a number or an identifier in a question, relative to another word that is as rare."""
BESIDE: Final = 0.5
"""Share of its relevance that a message passes to the next one, since answers follow questions; half of that goes to the message before."""
WITHIN: Final = 0.2
"""Share of its best piece's relevance that a message passes to its other pieces."""


def facts(text: str) -> list[str]:
    """Return numbers, identifiers and names in their order, in the form in which they are compared."""
    text = _GROUPED.sub("", text)
    return [_normal(match.group()) for match in _UNUSUAL.finditer(text) if _is_fact(match, text)]


def find_unsupported(text: str, sources: Iterable[str]) -> list[str]:
    """Return the facts of a text that none of the sources contains, each once.

    A compound is supported if its parts are, and a plural if its singular is.
    """
    known = {form for source in sources for form in _forms(_GROUPED.sub("", source))}
    return [
        fact for fact in dict.fromkeys(facts(text)) if not known & {fact, fact.removesuffix("s")} and not known.issuperset(_parts(fact))
    ]


def _forms(source: str) -> Iterator[str]:
    """Yield the words of a source, and the parts of its compounds."""
    for word in _WORD.findall(source):
        normal = _normal(word)
        yield normal
        parts = _parts(normal)
        yield from parts if len(parts) > 1 else ()


def _parts(word: str) -> list[str]:
    return [_normal(part) for part in re.split(r"[^\w]+", word) if part]


def _is_fact(match: "re.Match[str]", text: str) -> bool:
    """Return whether a word is a fact. A capital at the beginning of a sentence makes a name only if a name's predicate follows."""
    word = match.group().lstrip("'’.+-")
    if _CODED.search(word):
        return True
    if not word[:1].isupper() or _normal(word) in _NOT_NAMES:
        return False
    before = text[max(0, match.start() - 8) : match.start()].rstrip(" \t")
    opens = not before or before[-1] in _OPENING
    return not opens or word.endswith(("'s", "’s")) or _PREDICATE.match(text, match.end()) is not None


@lru_cache(maxsize=1 << 16)
def _normal(word: str) -> str:
    plain = word if word.isascii() else unicodedata.normalize("NFKC", word)
    form = plain.casefold().strip(".-+'’").removesuffix("'s").removesuffix("’s")
    return _CLOSING_ZEROS.sub(r"\1", form).removesuffix(".") if form[:1].isdigit() else form


def terms(text: str) -> set[str]:
    """Return the searchable words of a text, by their stems."""
    return {_stem(word) for word in _TERM.findall(text.casefold()) if word not in FUNCTION_WORDS}


@lru_cache(maxsize=1 << 16)
def _stem(word: str) -> str:
    return word if _DIGIT.search(word) else word[:_STEM]


class Scores:
    """The worth of a conversation's pieces and groups, before any of them is selected."""

    def __init__(self, conversation: Conversation) -> None:
        self._conversation = conversation
        self._terms = [terms(piece.text) for piece in conversation.pieces]
        self.news = [_news(piece.text, found) for piece, found in zip(conversation.pieces, self._terms, strict=True)]
        """Facts and words of each piece; they have worth only if no kept piece has them."""
        calls = (_calls_text(conversation, group) for group in conversation.groups)
        self.call_news: list[frozenset[str]] = [_news(text, terms(text)) if text else frozenset() for text in calls]
        """Facts and words in the calls of each group."""
        self._recency = [RECENCY * 0.5 ** min(back, 64) for back in range(len(conversation.groups) - 1, -1, -1)]
        if conversation.ends_with_calls:
            self._recency[-1] = CURRENT
        self._news_worth = self._weighed_news()
        self.worth = self._relevances()
        """Worth of each piece without its facts and words: their worth depends on the other kept pieces."""
        for number, piece in enumerate(conversation.pieces):
            role = conversation.messages[conversation.parts[piece.part].message].role
            self.worth[number] += piece.tokens / 40 * (ROLE.get(role, 0.0) + self._recency[piece.group])

    def new(self, found: frozenset[str], known: set[str]) -> float:
        """Return the worth of the facts and words in `found` that are not in `known`."""
        return math.fsum(map(self._news_worth.__getitem__, found - known))  # exact, since the order of a set differs between processes

    def call_worth(self, group: int) -> float:
        """Return the worth of knowing that the calls of a group were made."""
        return (CALL + self._recency[group]) if self._conversation.messages[self._first(group)].tool_calls else 0.0

    def _first(self, group: int) -> int:
        return self._conversation.groups[group].messages[0]

    def _weighed_news(self) -> dict[str, float]:
        """Return the worth of each fact and word: the rarer, the more."""
        groups = [set(found) for found in self.call_news]
        for piece, found in zip(self._conversation.pieces, self.news, strict=True):
            groups[piece.group] |= found
        counts = Counter(each for found in groups for each in found)
        most = math.log(1 + len(groups))
        return {each: (TERM if each[0] == _STEMMED else FACT) * math.log(1 + len(groups) / count) / most for each, count in counts.items()}

    def _relevances(self) -> list[float]:
        """Return how much each piece bears on the current question, including the share that its neighbours pass on."""
        weights = self._question()
        total = max(sum(weights.values()), LEAST_QUESTION)
        own = [math.fsum(weights[term] for term in found if term in weights) / total for found in self._terms]
        best = [0.0] * (len(self._conversation.groups) + 1)
        for piece, relevance in zip(self._conversation.pieces, own, strict=True):
            best[piece.group] = max(best[piece.group], relevance)
        return [
            RELEVANCE * (relevance + WITHIN * best[piece.group] + BESIDE * max(best[piece.group - 1], best[piece.group + 1] / 2))
            for piece, relevance in zip(self._conversation.pieces, own, strict=True)
        ]

    def _question(self) -> dict[str, float]:
        """Return the words of the user's last message and, for less, of the last turns and calls, weighed by how rare they are."""
        conversation = self._conversation
        counts: Counter[str] = Counter()
        for piece_terms in self._terms:
            counts.update(piece_terms)
        asked = terms(conversation.messages[conversation.last_user].text) if conversation.last_user >= 0 else set()
        later = set().union(*map(terms, self._last_words())) - asked
        return {
            term: math.log(1 + len(self._terms) / counts[term])
            * (1.0 if term in asked else LATER)
            * (CODED if _DIGIT.search(term) else 1.0)
            for term in sorted(asked | later)
            if term in counts
        }

    def _last_words(self) -> Iterable[str]:
        """Yield the assistant's words and calls in the last turns after the user's last message."""
        conversation = self._conversation
        for group in conversation.groups[-2:]:
            if group.messages[0] > conversation.last_user:
                yield conversation.messages[group.messages[0]].text
                yield _calls_text(conversation, group)


def _news(text: str, stems: set[str]) -> frozenset[str]:
    return frozenset([*facts(text), *(_STEMMED + stem for stem in stems)])


def _calls_text(conversation: Conversation, group: Group) -> str:
    calls = conversation.messages[group.messages[0]].tool_calls
    return "\n".join(f"{call.name} {value}" for call in calls for value in call.arguments.values())
