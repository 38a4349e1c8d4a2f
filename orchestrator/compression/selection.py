"""Score the parts of a conversation by the facts that they bring, and select those most worth for the tokens."""

import heapq
import math
import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import Final

from ...protocols import Message
from .conversation import TEXT_MARK, Conversation, Group, TextPart, result_mark

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


class Selection:
    """The kept part of a conversation.

    Worth has diminishing returns, since a fact is new only once. Therefore a greedy choice by worth for tokens comes close to the best
    one (Lin and Bilmes, *Multi-document Summarization via Budgeted Maximization of Submodular Functions*, 2010).
    """

    def __init__(self, conversation: Conversation) -> None:
        self._conversation = conversation
        self._scores = Scores(conversation)
        self._parts = {part.message: part for part in conversation.parts}
        self.pieces = bytearray(len(conversation.pieces))
        """1 for each piece that is kept."""
        self.groups = bytearray(group.is_fixed for group in conversation.groups)
        """1 for each group of which any part is kept."""
        self._known: set[str] = set()
        """Facts and words in the kept pieces."""
        self._order: list[tuple[str, int]] = []
        """The kept entries, in the order of selection."""
        if conversation.ends_with_calls:  # an agent that does not see its last calls repeats them
            self._keep(~(len(conversation.groups) - 1))

    def fill(self, budget: int) -> None:
        """Keep the entries with the most worth until `budget` tokens are used."""
        # An entry stands for a piece, or, by its complement, for the calls of a group.
        entries = [number for number, is_kept in enumerate(self.pieces) if not is_kept]
        entries += [~group for group, is_kept in enumerate(self.groups) if not is_kept and self._scores.call_worth(group)]
        # An entry that is too long may fit once its neighbour is kept, and is then tried again.
        heap = [(-self._density(entry, cost), entry) for entry in entries if (cost := self._cost(entry)) <= budget]
        heapq.heapify(heap)
        while heap and budget > 0:
            promised, entry = heapq.heappop(heap)
            if self._is_kept(entry):
                continue
            if (cost := self._cost(entry)) > budget:
                continue
            if (density := self._density(entry, cost)) < -promised * 0.999:
                heapq.heappush(heap, (-density, entry))
                continue
            budget -= cost
            for cheaper in self._keep(entry):
                heapq.heappush(heap, (-self._density(cheaper, self._cost(cheaper)), cheaper))

    def drop(self, tokens: int) -> bool:
        """Drop the entries that were selected last, at least `tokens` of them; return False if nothing is left to drop."""
        if not self._order:
            return False
        while self._order and tokens > 0:
            kind, number = self._order.pop()
            if kind == "piece":
                self.pieces[number] = 0
                tokens -= self._conversation.pieces[number].tokens
            else:
                self.groups[number] = 0
                tokens -= self._conversation.groups[number].tokens
        return True

    def _is_kept(self, entry: int) -> bool:
        return bool(self.pieces[entry] if entry >= 0 else self.groups[~entry])

    def _group(self, entry: int) -> int:
        return self._conversation.pieces[entry].group if entry >= 0 else ~entry

    def _density(self, entry: int, cost: int) -> float:
        """Return worth for tokens. An entry without cost comes first."""
        group = self._group(entry)
        worth = 0.0
        if entry >= 0:
            worth += self._scores.worth[entry] + self._scores.new(self._scores.news[entry], self._known)
        if not self.groups[group]:
            worth += self._scores.call_worth(group) + self._scores.new(self._scores.call_news[group], self._known)
        return worth / max(cost, 1)

    def _cost(self, entry: int) -> int:
        """Return the tokens by which the conversation grows. A piece next to a kept one can save a mark."""
        group = self._group(entry)
        cost = 0 if self.groups[group] else self._conversation.groups[group].tokens + self._conversation.text_mark_tokens
        if entry < 0:
            return cost
        piece = self._conversation.pieces[entry]
        part = self._conversation.parts[piece.part]
        gaps = (entry > part.pieces.start and not self.pieces[entry - 1]) + (entry + 1 < part.pieces.stop and not self.pieces[entry + 1])
        return cost + piece.tokens + self._conversation.mark_tokens(part) * (gaps - 1)

    def _keep(self, entry: int) -> list[int]:
        """Keep a piece or a group's calls, and return the pieces that became cheaper by that."""
        group = self._group(entry)
        cheaper: list[int] = []
        if not self.groups[group]:
            self.groups[group] = 1
            self._order.append(("group", group))
            self._known |= self._scores.call_news[group]
            cheaper += [number for part in self._conversation.groups[group].parts for number in self._conversation.parts[part].pieces]
        if entry >= 0:
            self.pieces[entry] = 1
            self._order.append(("piece", entry))
            self._known |= self._scores.news[entry]
            part_pieces = self._conversation.parts[self._conversation.pieces[entry].part].pieces
            cheaper += [number for number in (entry - 1, entry + 1) if number in part_pieces]
        return [number for number in cheaper if not self.pieces[number]]

    def render(self) -> tuple[Message, ...]:
        """Return the kept messages in their order, with marks for missing text."""
        return tuple(self._messages())

    def _messages(self) -> Iterator[Message]:
        before: str | None = None
        """Role of the last message; None at the beginning."""
        gap: str | None = None
        """Role of the first message that is missing before the next one; None if none is missing."""
        for number, group in enumerate(self._conversation.groups):
            messages = [self._message(index) for index in group.messages] if self.groups[number] else []
            # A message of nothing but a mark is not worth its tokens.
            if not messages or (not group.is_fixed and messages == [_nothing(messages[0])]):
                gap = gap or self._conversation.messages[group.messages[0]].role
                continue
            if gap is not None:
                yield from _bridge(before, messages, is_fixed=group.is_fixed)
            yield from messages
            before, gap = messages[-1].role, None

    def _message(self, index: int) -> Message:
        message = self._conversation.messages[index]
        part = self._parts.get(index)
        if part is None:
            return message
        text = self._text(part)
        if message.tool_result is None:
            return message if text == message.text else message.without_state.model_copy(update={"text": text})
        return message.model_copy(update={"tool_result": message.tool_result.model_copy(update={"content": text})})

    def _text(self, part: TextPart) -> str:
        """Return the kept text of a part, word for word, with marks between."""
        kept: list[str] = []
        missing = 0
        for number in part.pieces:
            piece = self._conversation.pieces[number]
            if not self.pieces[number]:
                missing += len(piece.text)
                continue
            kept += [*_marks(missing, part), piece.text]
            missing = 0
        return "".join([*kept, *_marks(missing, part)]).strip(" ")


def _marks(missing: int, part: TextPart) -> list[str]:
    if not missing:
        return []
    return [f" {result_mark(missing)} "] if part.is_result else [f" {TEXT_MARK} "]


def _nothing(message: Message) -> Message:
    return message.without_state.model_copy(update={"text": TEXT_MARK})


def _bridge(before: str | None, messages: list[Message], *, is_fixed: bool) -> Iterator[Message]:
    """Mark missing messages before `messages`.

    The mark is a message in the role of a missing one if two messages of one role would otherwise meet, since chat templates refuse
    that; else it stands at the beginning of the next message. Between the system prompt and the user's last message there is no place
    for a mark, nor in calls and results: a tool's result may be cut, but it holds only the tool's words.
    """
    first = messages[0]
    if first.role == "user" and before == "user":
        yield Message.assistant(TEXT_MARK)
    elif first.role == "assistant" and before in (None, "system", "assistant"):
        yield Message.user(TEXT_MARK)
    elif not is_fixed and not first.tool_calls and not first.text.startswith(TEXT_MARK):
        messages[0] = first.without_state.model_copy(update={"text": f"{TEXT_MARK} {first.text}"})
