"""The strategy `speculate`: the near agent runs ahead of far, which is asked about the steps to come before it has confirmed the last.

Nothing that near says reaches the conversation, and every step of it is far's own answer to the very request that `cloud` would have sent:
a request that was sent early is kept by its content, and its reply is taken only when the conversation has come to that request. The
results of near's look-ups are kept by call in the same way. All of it lives in this process, and a resumed run only begins without it.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

import anyio
from langgraph.errors import GraphBubbleUp

from ...protocols import (
    AgentError,
    BudgetExceeded,
    InvalidOutput,
    Message,
    NearfarError,
    RateLimited,
    Side,
    StepReply,
    StepRequest,
    Unavailable,
)
from ..safety.outbound_filter import Listener
from ..task.events import CallEnded
from ..task.results import Call, JudgedProposal, Speculation
from ..util.runtime import cancel_task
from .calls import CallLog, emit
from .near_path import KeptLookups, NearPath, NearStep, ahead_of, content_of, step_of
from .state import TaskState

Asking = Callable[[StepRequest], Awaitable[StepReply]]


@dataclass(frozen=True)
class _EarlyCall:
    """A far call that was begun before the conversation has come to it."""

    reply: "asyncio.Task[StepReply]"
    log: CallLog
    began: float
    heard: list[str]
    """Its text as a listener hears it: with the values behind placeholders."""


@dataclass
class _Open:
    """A step that near has proposed and far has not judged."""

    step: str
    """Its content, to compare with far's."""
    proposal: JudgedProposal
    after: TaskState | None = None
    """The state behind it; None: near has not come that far, or cannot."""
    request: StepRequest | None = None
    """The request that far gets in that state."""
    key: str = ""
    """Content of that request."""


class LookAhead:
    """The steps that near has proposed in one run, and far's replies to the requests that follow from them."""

    def __init__(self) -> None:
        self.kept = KeptLookups()
        self.told: Speculation | None = None
        """The run's figures; None: nothing has run ahead yet in this process."""
        self._open: list[_Open] = []
        self._early: dict[str, _EarlyCall] = {}
        self._near: list[CallLog] = []
        self._running: asyncio.Task[None] | None = None
        self._asked_now = ""
        """Content of the request that far was sent last by the conversation itself."""
        self._expected = ""
        """Content of the request that follows from far's last step, as near saw it; empty: unknown."""
        self._stands_at = ""
        """Content of the request at which near began last, or knew no further."""
        self._is_near_away = False
        """Near has failed, and is asked no further in this run: it may have to stand in for far."""
        self._is_refused = False
        """Far has refused an early call, and is asked no further ones in this run: they may be more than it takes at a time."""
        self._results = 0
        """Tool calls of the run whose results were noted."""
        self._moved = asyncio.Event()

    async def ask(self, path: NearPath, ask: Asking, log: CallLog, request: StepRequest, listener: Listener | None) -> StepReply:
        """Return far's reply to a request, from an early call where there is one, and let near go on. Raises what `ask` raises."""
        key = content_of(request)
        self.told = self.told or path.told_before
        self._results = path.note_results(self._results)
        if self._expected not in ("", key):  # a tool has said something else than near was told
            await self._abandon(log)
        self._asked_now = key
        if path.is_whole(request):
            self._begin(path, key)
        try:
            reply = await self._early_reply(key, log, listener)
            if reply is None:
                reply = await self._asked(path, ask, request, log)
        except BaseException:  # the run ends, or goes on with another agent: raised again
            await self._abandon(log)
            raise
        if not self._confirm(path, reply.message):
            await self._abandon(log)
        self._note(log)
        return reply

    async def aclose(self) -> None:
        """End all that is under way."""
        if self._running is not None:
            await cancel_task(self._running)
            self._running = None
        for early in self._early.values():
            with suppress(NearfarError):
                await cancel_task(early.reply)

    @property
    def figures(self) -> Speculation:
        """Return the run's figures so far."""
        return self.told or Speculation()

    def _begin(self, path: NearPath, key: str) -> None:
        is_idle = self._running is None or self._running.done()
        if is_idle and not (self._open or self._is_near_away) and key != self._stands_at and path.config.thrift < 1:
            self._stands_at = key
            self.told = self.figures.model_copy(update={"cycles": self.figures.cycles + 1})
            self._running = asyncio.create_task(self._go_ahead(path))

    async def _early_reply(self, key: str, log: CallLog, listener: Listener | None) -> StepReply | None:
        """Return the reply of an early call; None where there is none, it failed, or a limit left it fewer tokens than far may need.

        Then far is asked as if it had never been.
        """
        early = self._early.pop(key, None)
        if early is None:
            return None
        waiting = anyio.current_time()
        try:
            await asyncio.wait((early.reply,))
            reply = early.reply.result()
        except asyncio.CancelledError:
            await cancel_task(early.reply)
            self._early[key] = early  # `_abandon` records it
            raise
        except NearfarError:
            reply = None
        if reply is None or any(call.is_cut_short for call in early.log.made):
            _add(log, _wasted(early.log.made), at=0)
            return None
        _add(log, early.log.made, at=len(log.made))
        self.told = self.figures.model_copy(update={"saved_seconds": self.figures.saved_seconds + waiting - early.began})
        if listener is not None:
            for piece in early.heard:
                listener(piece)
        return reply

    async def _asked(self, path: NearPath, ask: Asking, request: StepRequest, log: CallLog) -> StepReply:
        """Ask far; once more where early calls have taken the room that this one needs, without them."""
        try:
            return await _timed(path, ask, request)
        except (BudgetExceeded, RateLimited):
            if not self._early:
                raise
            self._is_refused = True
            await self._abandon(log)
            return await _timed(path, ask, request)

    def _confirm(self, path: NearPath, said: Message) -> bool:
        """Compare far's step with near's next proposal. Returns whether near is still on far's path."""
        self._expected = ""
        if not self._open:
            return False
        first = self._open.pop(0)
        is_same = first.step == step_of(said)
        judged = first.proposal.model_copy(update={"confirmed": is_same})
        if path.config.learn:
            path.rates.learn(judged)
        self.told = self.figures.model_copy(update={"judged": (*self.figures.judged, judged)})
        if is_same:
            self._expected = first.key
            self._ask_where_it_pays(path)
            self._moved.set()
        return is_same

    async def _abandon(self, log: CallLog) -> None:
        """Cancel what far will not confirm, and record what it has cost."""
        await self.aclose()
        lost = [call for early in self._early.values() for call in _wasted(early.log.made)]
        _add(log, lost, at=0)
        self._note(log)
        self._early.clear()
        self._open.clear()
        self._expected = ""
        self.told = self.figures.plus_waste(lost)

    def _note(self, log: CallLog) -> None:
        """Put near's calls before far's, which stays the last."""
        _add(log, [call for each in self._near for call in each.made], at=0)
        self._near = [each for each in self._near if not each.made]

    async def _go_ahead(self, path: NearPath) -> None:
        """Propose steps, look up what they ask for, and ask far about what follows."""
        state = path.start
        with suppress(NearfarError, GraphBubbleUp):  # near's failure is not the task's
            await path.open_near()
            while True:
                await self._wait_for_room(path)
                near = await self._proposed(path, state)
                if near is None:
                    self._stands_at = content_of(await path.far_request(state))
                    return
                self.told = self.figures.model_copy(update={"proposed": self.figures.proposed + 1})
                ahead = _Open(step_of(near.said), near.proposal)
                self._open.append(ahead)
                following = await path.followed(state, near.said, self.kept)
                if following is None:
                    return
                state = ahead.after = following
                ahead.request = await path.far_request(state)
                ahead.key = content_of(ahead.request)
                self._ask_where_it_pays(path)

    async def _wait_for_room(self, path: NearPath) -> None:
        """Wait until a further proposal could lead to a far call that pays as soon as far has confirmed the first one.

        The next step of all is always proposed: that tells how often near is right, and how fast it is.
        """
        while self._open:
            waiting = [each.proposal for each in self._open]
            if len(waiting) < path.config.maximum_ahead and path.rates.odds(waiting[1:]) >= path.least_odds:
                return
            self._moved.clear()
            await self._moved.wait()

    async def _proposed(self, path: NearPath, state: TaskState) -> NearStep | None:
        log = CallLog(state, path.runtime)
        self._near.append(log)
        began = anyio.current_time()
        try:
            step = await path.propose(state, log)
        except AgentError as error:
            self._is_near_away = not isinstance(error, InvalidOutput)  # which says something of one proposal alone
            raise
        path.rates.time(Side.NEAR, anyio.current_time() - began)
        return step

    def _ask_where_it_pays(self, path: NearPath) -> None:
        """Ask far about what follows from each proposal whose odds, with those before it, are good enough."""
        odds = 1.0
        for each in self._open:
            odds *= path.rates.odds((each.proposal,))
            if self._is_refused or each.request is None or each.after is None or odds < path.least_odds:
                return
            if each.key != self._asked_now and each.key not in self._early:
                self._ask_early(path, each.after, each.request, each.key)

    def _ask_early(self, path: NearPath, state: TaskState, request: StepRequest, key: str) -> None:
        log = CallLog(state, path.runtime)
        request = ahead_of(request, "ahead", key)
        heard: list[str] = []
        ask = partial(log.ask, path.far, role="verify", turn=state["acted"], listener=heard.append, is_extra=True)
        self._early[key] = _EarlyCall(asyncio.create_task(self._asked_early(path, ask, request)), log, anyio.current_time(), heard)

    async def _asked_early(self, path: NearPath, ask: Asking, request: StepRequest) -> StepReply:
        try:
            return await _timed(path, ask, request)
        except (RateLimited, Unavailable):
            self._is_refused = True
            raise


async def _timed(path: NearPath, ask: Asking, request: StepRequest) -> StepReply:
    began = anyio.current_time()
    reply = await ask(request)
    path.rates.time(Side.FAR, anyio.current_time() - began)
    return reply


def _add(log: CallLog, calls: Sequence[Call], *, at: int) -> None:
    """Add calls that were made ahead to those of a node, and tell of them, which was not done while they were made."""
    log.made[at:at] = calls
    for call in calls:
        emit(log.runtime, CallEnded(call=call))


def _wasted(calls: Sequence[Call]) -> list[Call]:
    return [call.model_copy(update={"shadow": True}) for call in calls]
