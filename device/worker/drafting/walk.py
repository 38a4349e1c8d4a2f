"""Guesses how a call goes on: one way through its grammar, along what is forced and, where there is a choice, what is likeliest."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from os.path import commonprefix
from typing import Final, NamedTuple

from ..constraints import Constraint, opening_of_call
from ..generation import Generation
from .origins import NAME, Draft, Origin, Records, Source
from .retrieval import LONGEST_MATCH, CallMemory, Conversation, as_text

_ENDS: Final = ('"}}', '"]}}', '", ', "}}", "]}}", ", ")
"""Texts that may follow a value: the end of the call if the grammar allows it, else the next parameter."""
_ARGUMENTS: Final = '", "arguments": '
_LONGEST_VALUE: Final = 12
"""Tokens of a value beyond which its length says no more about its end."""


@dataclass(slots=True, kw_only=True)
class Knowledge:
    """The sources of guesses."""

    tools: Sequence[str]
    called_last: str | None
    memory: CallMemory
    conversation: Conversation
    records: Records
    tokenize: Callable[[str], list[int]]
    piece: Callable[[int], bytes]


class _Value(NamedTuple):
    """A value that is being written."""

    parameter: str
    text: str
    tokens: int

    def end(self, further: int) -> Origin:
        """Return the origin of the guess that the value ends after so many further tokens."""
        return Origin(Source.SCHEMA, self.parameter, min(self.tokens + further, _LONGEST_VALUE))

    def going_on(self, source: Source, length: int) -> Origin:
        """Return the origin of the guess that the value goes on as in a match. Its beginning depends on the parameter; further on only
        the match counts."""
        return Origin(source, "" if self.text else self.parameter, length)


class _Guess(NamedTuple):
    """A possible continuation, and its tokens; none if the grammar has no such way."""

    origin: Origin
    run: Callable[[], Draft]


class Walk:
    """One draft in the making, with a copy of the constraint that goes along."""

    def __init__(self, generation: Generation, constraint: Constraint, knowledge: Knowledge) -> None:
        self._constraint = constraint.copy()
        self._known = knowledge
        self._in_call = generation.in_call
        self._closer = generation.closer
        self._written = generation.call_tokens
        self._text = generation.call_text
        self._context = as_text(generation.call_tokens[-LONGEST_MATCH:])
        self._draft = Draft()

    def draft(self, most: int, *, least_chance: float) -> Draft:
        """Draft at most so many tokens whose chance of all being right is at least this, with the call's closer if they complete it."""
        draft, constraint, chance = self._draft, self._constraint, 1.0
        while len(draft.tokens) < most and chance >= least_chance and not constraint.complete:
            run = self._run()
            taken = constraint.follow(run.tokens)
            if not taken:
                break
            draft.extend(run.first(taken))
            if self._in_call:
                self._text += b"".join(map(self._known.piece, run.tokens[:taken])).decode("utf-8", "ignore")
                self._context = (self._context + as_text(run.tokens[:taken]))[-LONGEST_MATCH:]
            for origin in run.origins[:taken]:
                chance *= self._known.records.chance(origin)
        closer = self._closer if self._in_call and constraint.complete else ()
        draft.extend(Draft.forced(closer))
        return draft.first(most)

    def _run(self) -> Draft:
        forced = self._constraint.forced()
        if forced:
            return Draft.forced(self._known.tokenize(forced))
        if not self._in_call:
            return Draft()
        head, arguments, inside = self._text.partition(_ARGUMENTS)
        return self._in_value(head.rpartition('"')[2], inside) if arguments else self._in_name()

    def _in_name(self) -> Draft:
        """Draft the rest of the name of the tool that is likely called."""
        known, written = self._known, self._text.lstrip(" \n")
        tools = known.memory.by_likelihood(known.tools, after=known.called_last)
        rests = [opening[len(written) :] for opening in map(opening_of_call, tools) if opening.startswith(written)]
        if not any(rests):
            return Draft()
        layout = "\n" if not self._text and known.memory.on_new_line else ""
        draft = Draft.forced(known.tokenize(layout + rests[0]))
        sure, length = len(layout + commonprefix(rests)), 0
        for place, token in enumerate(draft.tokens):
            length += len(known.piece(token))
            if length > sure:
                draft.origins[place] = NAME
                break
        return draft

    def _in_value(self, tool: str, inside: str) -> Draft:
        value = self._value(inside)
        chance = self._known.records.chance
        guesses = sorted(self._guesses(tool, value), key=lambda guess: -chance(guess.origin))
        return next((run for run in (guess.run() for guess in guesses) if run.tokens), Draft())

    def _value(self, inside: str) -> _Value:
        head, _, text = inside.rpartition('": ')
        tokens, length = 0, len(text)
        for token in chain(reversed(self._draft.tokens), reversed(self._written)):
            if length <= 0 or tokens == _LONGEST_VALUE:
                break
            length -= len(self._known.piece(token))
            tokens += 1
        return _Value(head.rpartition('"')[2], text.rpartition('"')[2], tokens)

    def _guesses(self, tool: str, value: _Value) -> Iterator[_Guess]:
        known = self._known
        if value.text:
            yield _Guess(value.end(0), partial(self._ended, value))
        match = known.memory.find(tool, self._context)
        if match is not None:
            origin = value.going_on(Source.HISTORY, match.length)
            yield _Guess(origin, partial(self._continued, value, origin, match.following))
        match = known.conversation.find(value.parameter, value.text)
        if match is not None:
            origin = value.going_on(Source.PROMPT, match.length)
            yield _Guess(origin, partial(self._continued, value, origin, as_text(known.tokenize(match.following))))

    def _ended(self, value: _Value) -> Draft:
        for end in _ENDS:
            tokens = self._known.tokenize(end)
            taken = self._constraint.follow(tokens)
            forced = self._constraint.forced() if taken == len(tokens) else ""
            self._constraint.take_back(taken)
            if taken == len(tokens):
                draft = Draft.forced(self._known.tokenize(end + forced))
                draft.origins[0] = value.end(0)
                return draft
        return Draft()

    def _continued(self, value: _Value, origin: Origin, following: str) -> Draft:
        """Draft the continuation of a match, up to where the value is likelier to end."""
        draft, chance = Draft(), self._known.records.chance
        for place, character in enumerate(following):
            if place:
                origin = Origin(origin.source, "", min(origin.degree + 1, LONGEST_MATCH))
                if chance(origin) < chance(value.end(place)):
                    break
            draft.tokens.append(ord(character))
            draft.origins.append(origin)
        return draft
