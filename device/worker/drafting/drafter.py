"""The drafter of a step, the state that its worker keeps for drafting, and the verification of drafts."""

from collections.abc import Callable
from functools import lru_cache, partial
from typing import Final, NamedTuple, Protocol

from ....protocols import StepRequest, ToolChoice
from ..engine import Vocabulary
from ..generation import Generation
from ..sampling import NearTie
from ..sequences import common_prefix
from .payoff import SIZES, Counts, Draft, Pass, Payoff
from .walk import CallMemory, ConversationTexts, Knowledge, Walk


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


class Drafting:
    """A worker's knowledge: past calls, how often each origin was right, and the cost of passes."""

    def __init__(self, vocabulary: Vocabulary, *, tolerance: float, payoff: Payoff | None = None) -> None:
        """`tolerance`: difference between logits of a pass of one token and of one of several, which depends on the engine."""
        self.tolerance = tolerance
        self.memory = CallMemory()
        self.payoff = payoff or Payoff()
        self.counts = Counts()
        self.tokenize = lru_cache(_CACHED)(vocabulary.tokenize_inside)
        self.piece = vocabulary.piece

    def drafter(self, request: StepRequest) -> "Drafter | None":
        """Return a drafter for a step that may write a call, or JSON, greedily; else None. With a temperature, rounding could change a
        draw unnoticed."""
        tools = () if request.tool_choice is ToolChoice.NONE else request.tools
        if request.temperature or not (tools or request.output_schema):
            return None
        return Drafter(self, request, [tool.name for tool in tools])


class Drafter:
    """Drafts for one step."""

    def __init__(self, drafting: Drafting, request: StepRequest, tools: list[str]) -> None:
        called = [call.name for message in request.messages for call in message.tool_calls]
        self._drafting = drafting
        self._known = Knowledge(
            tools=tools,
            called_last=called[-1] if called else None,
            memory=drafting.memory,
            conversation=ConversationTexts(request.messages),
            records=drafting.payoff.records,
            tokenize=drafting.tokenize,
            piece=drafting.piece,
        )
        self._remembered = 0
        self._draft = Draft()
        self._pass: Pass | None = None
        self._undecided = False
        """True if the next token has to be chosen from a pass without a draft."""

    def draft(self, generation: Generation, pass_: Pass, *, most: int) -> list[int]:
        """Return tokens worth a try after those that were chosen, `most` at most."""
        constraint, undecided, self._undecided = generation.constraint, self._undecided, False
        if constraint is None or undecided or not pass_.trial.drafts:
            return []
        payoff = self._drafting.payoff
        walk = Walk(generation, constraint, self._known)
        draft = walk.draft(min(most, SIZES[-1] - pass_.size), least_chance=payoff.least_chance(pass_))
        self._draft, self._pass = payoff.cut(draft, pass_), pass_
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
        draft, pass_, records = self._draft, self._pass, self._drafting.payoff.records
        assert pass_ is not None, "what was drafted was drafted for a pass"
        kept = max(verdict.kept, 0)
        for origin in draft.origins[:kept]:
            records.add(origin, right=True)
        if verdict.queue and not verdict.undecided and kept < len(draft.origins):
            records.add(draft.origins[kept], right=False)
        self._drafting.counts.add(draft, kept)
        pass_.gained += kept

    def remember(self, generation: Generation) -> None:
        """Keep the calls that the step has written since it was last asked to."""
        known = self._known
        for call in generation.calls[self._remembered :]:
            known.memory.add(call.tool, call.tokens, after=known.called_last)
            known.memory.on_new_line = known.piece(call.tokens[0]).startswith(b"\n")
            known.called_last = call.tool
        self._remembered = len(generation.calls)
