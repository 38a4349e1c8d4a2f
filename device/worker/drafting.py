"""Drafting of tool calls: most of a call can be guessed, and the model checks a guessed run of tokens in one pass.

`Drafting` is a worker's, `Drafter` a step's, and a `Walk` makes one draft. What is drafted never changes the output: a token counts only
where the step's own `Generation` chooses it from the logits of that pass. After ToolSpec (arXiv 2604.13519), with runs of several sources
joined into one draft, and with its length chosen by what a pass costs on this machine.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import chain
from os.path import commonprefix
from pathlib import Path
from typing import Final, NamedTuple, Protocol

from ...protocols import Message, StepRequest, ToolChoice
from .draft_memory import LONGEST_MATCH, MOST_FOLLOWING, TOKENS_PER_TOOL, CallFile, CallMemories, CallMemory, KeptCall, Match, as_text
from .draft_payoff import NAME, SIZES, Counts, Draft, GuessOrigin, GuessSource, Pass, Payoff, PayoffRecords
from .engine import Vocabulary, common_prefix, tokens_of
from .generation import Generation
from .sampling import Constraint, NearTie, opening_of_call


class ConversationTexts:
    """Texts of a conversation, from which values are often taken."""

    def __init__(self, messages: Sequence[Message]) -> None:
        self._texts = [message.tool_result.content if message.tool_result else message.text for message in messages]

    def find(self, parameter: str, value: str) -> Match | None:
        """Find how a value with this beginning went on at its last occurrence: as the value of a field of that name, or anywhere."""
        for text, length in ((f'"{parameter}": "{value}', LONGEST_MATCH), (value, min(len(value), LONGEST_MATCH - 1))):
            for said in reversed(self._texts) if text else ():
                at = said.rfind(text)
                if at >= 0:
                    at += len(text)
                    return Match(length, said[at : at + MOST_FOLLOWING])
        # The value is often the whole last message: an answer to a question, the result of a look-up.
        return Match(0, self._texts[-1][:MOST_FOLLOWING]) if self._texts and not value else None


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
    conversation: ConversationTexts
    records: PayoffRecords
    tokenize: Callable[[str], list[int]]
    piece: Callable[[int], bytes]


class _Value(NamedTuple):
    """A value that is being written."""

    parameter: str
    text: str
    tokens: int

    def end(self, further: int) -> GuessOrigin:
        """Return the origin of the guess that the value ends after so many further tokens."""
        return GuessOrigin(GuessSource.SCHEMA, self.parameter, min(self.tokens + further, _LONGEST_VALUE))

    def going_on(self, source: GuessSource, length: int) -> GuessOrigin:
        """Return the origin of the guess that the value goes on as in a match. Its beginning depends on the parameter; further on only
        the match counts."""
        return GuessOrigin(source, "" if self.text else self.parameter, length)


class _Guess(NamedTuple):
    """A possible continuation, and its tokens; none if the grammar has no such way."""

    origin: GuessOrigin
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
            yield _Guess(value.end(0), partial(self._draft_end, value))
        match = known.memory.find(tool, self._context)
        if match is not None:
            origin = value.going_on(GuessSource.HISTORY, match.length)
            yield _Guess(origin, partial(self._draft_match, value, origin, match.following))
        match = known.conversation.find(value.parameter, value.text)
        if match is not None:
            origin = value.going_on(GuessSource.PROMPT, match.length)
            yield _Guess(origin, partial(self._draft_match, value, origin, as_text(known.tokenize(match.following))))

    def _draft_end(self, value: _Value) -> Draft:
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

    def _draft_match(self, value: _Value, origin: GuessOrigin, following: str) -> Draft:
        """Draft the continuation of a match, up to where the value is likelier to end."""
        draft, chance = Draft(), self._known.records.chance
        for place, character in enumerate(following):
            if place:
                origin = GuessOrigin(origin.source, "", min(origin.degree + 1, LONGEST_MATCH))
                if chance(origin) < chance(value.end(place)):
                    break
            draft.tokens.append(ord(character))
            draft.origins.append(origin)
        return draft


class Choose(Protocol):
    """Lets a step choose what to compute next, from the logits behind so many tokens of the draft; see `Generation.advance`."""

    def __call__(self, offset: int, tolerance: float) -> list[int]: ...


class DraftVerdict(NamedTuple):
    """The result of a pass that held a draft."""

    kept: int
    """Cells of the draft that stay in the cache; negative if as many of those in front of it have to be computed again."""
    queue: list[int]
    """Cells to compute next."""
    undecided: bool
    """True if the choice after them was too close to be made from a pass of several tokens; it has to be made from `queue` alone."""


def verify(fed: list[int], drafted: list[int], choose: Callable[[int], list[int]]) -> DraftVerdict:
    """Let a step choose for as long as it chooses what was drafted. `fed` are the cells in front of the draft."""
    kept, last = 0, fed
    while True:
        try:
            chosen = choose(kept)
        except NearTie:
            return DraftVerdict(kept - len(last), last, undecided=True)
        if not chosen or drafted[kept : kept + len(chosen)] != chosen:
            same = common_prefix(drafted[kept:], chosen)
            return DraftVerdict(kept + same, chosen[same:], undecided=False)
        kept, last = kept + len(chosen), chosen


_CACHED: Final = 1024
_LONGEST_PAUSE: Final = 7


class Drafting:
    """A worker's knowledge: past calls, how often each origin was right, and the cost of passes."""

    def __init__(self, vocabulary: Vocabulary, *, tolerance: float, payoff: Payoff | None = None, folder: Path | None = None) -> None:
        """`tolerance`: difference between logits of a pass of one token and of one of several, which depends on the engine.
        `folder`: keeps past calls for the next worker; None: they are forgotten with this one."""
        self.tolerance = tolerance
        self.memories = CallMemories(None if folder is None else CallFile(folder, vocabulary))
        self.payoff = payoff or Payoff()
        self.counts = Counts()
        self.tokenize = lru_cache(_CACHED)(vocabulary.tokenize_inside)
        self.piece = vocabulary.piece

    def drafter(self, request: StepRequest) -> "Drafter | None":
        """Return a drafter for a step that may write a call, or JSON, greedily; else None. With a temperature, rounding could change a
        draw unnoticed; with penalties, past calls say little about this one."""
        tools = () if request.tool_choice is ToolChoice.NONE else request.tools
        is_penalized = request.presence_penalty or request.frequency_penalty
        if request.temperature or is_penalized or not (tools or request.output_schema):
            return None
        return Drafter(self, request, [tool.name for tool in tools])


class Drafter:
    """Drafts for one step."""

    def __init__(self, drafting: Drafting, request: StepRequest, tools: list[str]) -> None:
        called = [call.name for message in request.messages for call in message.tool_calls]
        self._drafting = drafting
        self._sensitivity = request.sensitivity
        self._known = Knowledge(
            tools=tools,
            called_last=called[-1] if called else None,
            memory=drafting.memories.of(request.sensitivity),
            conversation=ConversationTexts(request.messages),
            records=drafting.payoff.records,
            tokenize=drafting.tokenize,
            piece=drafting.piece,
        )
        self._remembered = 0
        self._guess = Draft()
        """All that was guessed; what would not pay is not in the draft, and tells all the same how often such guesses are right."""
        self._draft = Draft()
        self._pass: Pass | None = None
        self._pause = self._next_pause = 0
        """Tokens until it is worth guessing again: inside of a long value, there is nothing to guess for a while."""
        self._undecided = False
        """True if the next token has to be chosen from a pass without a draft."""

    def draft(self, generation: Generation, pass_: Pass, *, most: int) -> list[int]:
        """Return tokens worth a try after those that were chosen, `most` at most."""
        constraint, undecided, self._undecided = generation.constraint, self._undecided, False
        if constraint is None or undecided or not pass_.trial.drafts:
            return []
        if self._pause:
            self._pause -= 1
            return []
        payoff = self._drafting.payoff
        walk = Walk(generation, constraint, self._known)
        draft = walk.draft(min(most, SIZES[-1] - pass_.size), least_chance=payoff.least_chance(pass_))
        self._guess, self._draft, self._pass = draft, payoff.cut(draft, pass_), pass_
        self._next_pause = 0 if self._draft.tokens else min(2 * self._next_pause + 1, _LONGEST_PAUSE)
        self._pause = self._next_pause // 2
        pass_.drafted = True
        pass_.size += len(self._draft.tokens)
        return self._draft.tokens

    def verify(self, fed: list[int], drafted: list[int], choose: Choose) -> DraftVerdict:
        """Find out how much of the draft is right. `fed` are the cells in front of it, and `drafted` are its own."""
        verdict = verify(fed, drafted, partial(choose, tolerance=self._drafting.tolerance))
        self._undecided = verdict.undecided
        self._learn(verdict)
        return verdict

    def _learn(self, verdict: DraftVerdict) -> None:
        pass_ = self._pass
        assert pass_ is not None, "what was drafted was drafted for a pass"
        kept = max(verdict.kept, 0)
        for origin in self._draft.origins[:kept]:
            self._drafting.payoff.records.add(origin, right=True)
        if not verdict.undecided:
            self.chose(tokens_of(verdict.queue) if verdict.queue else (), behind=kept)
        self._drafting.counts.add(self._draft, kept)
        pass_.gained += kept

    def chose(self, tokens: Sequence[int], *, behind: int = 0) -> None:
        """Learn from tokens that were chosen, behind so many of those that were guessed."""
        guess, self._guess = self._guess, Draft()
        for token, guessed, origin in zip(tokens, guess.tokens[behind:], guess.origins[behind:], strict=False):
            self._drafting.payoff.records.add(origin, right=token == guessed)
            if token != guessed:
                break

    def remember(self, generation: Generation) -> None:
        """Keep the calls that the step has written since it was last asked to."""
        known = self._known
        for call in generation.calls[self._remembered :]:
            kept = KeptCall(
                tool=call.tool,
                after=known.called_last,
                on_new_line=known.piece(call.tokens[0]).startswith(b"\n"),
                sensitivity=self._sensitivity,
                tokens=call.tokens[-TOKENS_PER_TOOL:],
            )
            self._drafting.memories.add(kept)
            known.called_last = call.tool
        self._remembered = len(generation.calls)
