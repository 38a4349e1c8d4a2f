"""Making the executor's conversation fit the context window of its agent."""

from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import NamedTuple

from ...protocols import AgentCard, ContextOverflow, Message, Side, StepReply, StepRequest
from ..agents.pool import AgentHandle, AgentPool
from ..compression.compressor import Ask, Compressed, Summarizer, compress, compress_and_summarize
from ..compression.conversation import conversation_tokens
from ..task.policy import CompressionConfig, CompressionUse
from .calls import CallLog
from .state import TaskState
from .turn import Turn

_TRIES = 5
"""Number of times that an agent is asked again with a shorter conversation."""
_TIGHTER = 1.25
"""Windows full that a conversation is taken for which was refused."""
_LEAST_SHARE = 4
"""At most one part in so many of the context window is kept free for the output."""
_SLOPES = (0.25, 4.0)
"""Between which lies what an agent counts for each token that we estimate."""
_DISTANCE = 16
"""Tokens by which two conversations have to differ to tell that from them."""


class Fit(NamedTuple):
    """One conversation: its length as we estimate it, and as the agent counted it, with its tools and all."""

    estimated: int
    counted: int


def expected_at(counts: Sequence[Fit], budget: int) -> int:
    """Return the estimate of a conversation that the agent would count as `budget` tokens, by a line through its last counts."""
    last, before = counts[-1], counts[0]
    distance = last.estimated - before.estimated
    slope = 1.0 if abs(distance) < _DISTANCE else (last.counted - before.counted) / distance
    least, most = _SLOPES
    return last.estimated + int((budget - last.counted) / min(max(slope, least), most))


class Fitting:
    """One step of an executor, with as much of its conversation as fits its agent's context window.

    Tokens are estimated, and the estimate is corrected by the agent's own counts of its last steps. The task's state keeps the whole
    conversation; each step compresses it again, by what matters then.
    """

    def __init__(self, turn: Turn, card: AgentCard) -> None:
        self._state = turn.state
        self._policy = turn.task.policy.compression
        use = self._policy.use
        self._is_wanted = use is CompressionUse.ALWAYS or (use is CompressionUse.LAST_RESORT and not turn.has_successor)
        self._card = card
        self._window = card.limits.context_tokens
        self._counts = [Fit(*pair) for pair in turn.state.get("counts", [])]
        self._reason: str | None = None
        """A sentence about how the conversation was shortened; None if it was not."""

    @property
    def noted(self) -> TaskState:
        """The state's update after the step. It reports once for each attempt that the conversation was shortened."""
        was_shortened = self._state.get("is_shortened", False)
        reasons = [*self._state["reasons"], self._reason] if self._reason is not None and not was_shortened else self._state["reasons"]
        counts = [list(pair) for pair in self._counts[-2:]]
        return {"counts": counts, "is_shortened": was_shortened or self._reason is not None, "reasons": reasons}

    async def ask(self, request: StepRequest, ask: Ask, summarizer: Summarizer | None) -> StepReply:
        """Ask with the whole conversation, or a part of one that is too long. Raises `ContextOverflow` where no part is short enough."""
        sent = await self._expected_to_fit(request, summarizer)
        for tried in range(_TRIES):
            try:
                return self._measured(sent, await ask(sent))
            except ContextOverflow:
                if not self._is_wanted:
                    raise
                self._tighten(sent)
                key = f"{request.idempotency_key}/shorter-{tried}"  # another content under the same key would be refused
                sent = (await self._fitted(request, summarizer)).model_copy(update={"idempotency_key": key})
        return self._measured(sent, await ask(sent))

    async def _expected_to_fit(self, request: StepRequest, summarizer: Summarizer | None) -> StepRequest:
        """Return the request, cut at once if the agent is expected to refuse it. If it cannot be cut, it is sent whole."""
        if not self._is_wanted or not self._counts:
            return request
        try:
            return await self._fitted(request, summarizer)
        except ContextOverflow:
            return request

    async def _fitted(self, request: StepRequest, summarizer: Summarizer | None) -> StepRequest:
        """Return the request within the window, as far as we can tell. Raises `ContextOverflow` where it cannot be cut that far."""
        if self._window is None or not self._counts:
            return request
        reserve = min(self._policy.reserve_tokens, request.max_output_tokens or self._window, self._window // _LEAST_SHARE)
        budget = max(expected_at(self._counts, self._window - reserve), 0)
        compressed = await self._compressed(request, budget, summarizer)
        if compressed.tokens == compressed.original_tokens:
            return request
        self._reason = _reason(self._card, compressed)
        return request.model_copy(update={"messages": compressed.messages, "idempotency_key": f"{request.idempotency_key}/shorter"})

    async def _compressed(self, request: StepRequest, budget: int, summarizer: Summarizer | None) -> Compressed:
        if summarizer is None or not self._policy.summary_tokens:
            return compress(request.messages, budget=budget)
        return await compress_and_summarize(
            request.messages,
            budget=budget,
            summary_tokens=min(self._policy.summary_tokens, budget // 2),
            summarizer=summarizer,
            sensitivity=request.sensitivity,
        )

    def _tighten(self, refused: StepRequest) -> None:
        """Take a conversation for longer than we thought, and shorter ones in proportion."""
        estimated = conversation_tokens(refused.messages)
        self._window = self._card.limits.context_tokens or estimated
        self._counts = [Fit(0, 0), Fit(estimated, max(estimated, int(self._window * _TIGHTER)))]

    def _measured(self, sent: StepRequest, reply: StepReply) -> StepReply:
        counted = reply.finished.usage.input_tokens
        if counted and self._window is not None:
            self._counts.append(Fit(conversation_tokens(sent.messages), counted))
        return reply


async def asked_with_less(
    ask: Callable[[Sequence[Message], str], Awaitable[StepReply]], work: Sequence[Message], *, key: str, policy: CompressionConfig
) -> StepReply:
    """Ask a supervisor about the work; ask with half of it, and half of that, if it exceeds the context window. No other agent could
    take over.

    Raises `ContextOverflow` if even the last part does not fit.
    """
    for tried in range(_TRIES):
        try:
            return await ask(work, f"{key}/shorter-{tried}" if tried else key)
        except ContextOverflow:
            if policy.use is CompressionUse.NEVER:
                raise
            work = compress(work, budget=conversation_tokens(work) // 2).messages
    return await ask(work, f"{key}/shorter-{_TRIES}")


def summarizer_of(pool: AgentPool, turn: Turn, log: CallLog) -> Summarizer | None:
    """Return the near agent that sums up, so that nothing leaves the device for it: the executor itself where it is near."""
    near = [turn.handle] if turn.handle.side is Side.NEAR else [each for each in pool if each.side is Side.NEAR]
    handle: AgentHandle | None = min(near, key=lambda each: each.is_elsewhere, default=None)
    if handle is None or handle.card is None:
        return None
    return Summarizer(handle.card, partial(log.ask, handle, role="summarize", turn=turn.state["acted"]))


def _reason(card: AgentCard, compressed: Compressed) -> str:
    before, after = compressed.original_tokens, compressed.tokens
    summary = compressed.summary
    added = "" if summary is None else f"; no summary: {summary.problem}" if summary.problem else ", with a summary of the rest"
    return f"the conversation was too long for {card.name}: of {before:,} tokens, as we estimate them, it was sent {after:,}{added}"
