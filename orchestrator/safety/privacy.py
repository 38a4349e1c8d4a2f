"""Decide which data of one run may leave the device: by label, by detectors' findings, and by known secrets in the bytes."""

import logging
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import copy
from dataclasses import replace
from functools import cached_property, partial
from typing import Any, Final, NoReturn, TypeVar
from uuid import uuid4

from pydantic import Field

from ...protocols import Message, PrivacyViolation, ProviderState, Sensitivity, Side, StepRequest, StoreError
from ...protocols.items import Tier
from ...protocols.steps import Value
from ..agents import AgentHandle
from ..task import Task
from ..task.labels import OPEN, Label, may_go
from ..task.policy import OnFinding, PrivacyConfig
from ..util.runtime import in_thread
from .detection import UNCHECKED, Detector, PrivateFinding
from .outbound_filter import OutboundFilter, OutboundRequest, OwnMessages, RunRecords, not_logged
from .placeholders import Placeholders, map_request_texts, map_texts, texts_of, texts_said
from .scanner import REACH, Findings, KnownSecrets, OutboundScanner, normalize

logger = logging.getLogger(__name__)

T = TypeVar("T")
V = TypeVar("V", bound=Value)

_READ = ("messages", "attempts", "guidance", "tool_calls", "roles")
"""Parts of a task's state that its user, its memory and its plans are made from."""
_WHOLE = "private"
"""Type of the placeholders for whole results of tools."""
_TOLD = "[What the tool returned stays on the user's device. Write the placeholder where it belongs: it is filled in there.]"
_DETECTORS = "the detectors"
"""Origin of what they have found."""
_HELD_HINT: Final = "let a near agent continue; [policy.privacy] says what may leave it"
_SHOWN_HINT: Final = 'let a near agent that reads them continue, or pass sensitivity="public" with the task itself if they may leave'
_FOUND: Final = Label(tier=Tier.USER, origins=(_DETECTORS,))


class PrivateResult(Value):
    """A tool's result in a conversation that may not leave the device."""

    position: int
    id: str = Field(default_factory=lambda: uuid4().hex)
    is_derived: bool = False
    """A placeholder went into its call."""


class RunPrivacy:
    """Protects the private data of one run from far agents.

    Args:
        policy: the `[policy.privacy]` section of the task.
        public: the texts that the task says in public itself.
        records: keep placeholders and the outbound log; None: both end with this process.
        detector: scans outbound texts.
        recent: the ends of the last texts that left in the same conversation; the run adds to them.
        begun: number of messages of the task, which conversations of the run begin with; a system message at its beginning is not counted.
        is_declared: the task itself, not only its policy, is declared public: its images and documents may leave unread.
    """

    def __init__(
        self,
        policy: PrivacyConfig,
        public: Sequence[str],
        *,
        records: RunRecords | None = None,
        detector: Detector | None = None,
        recent: deque[str] | None = None,
        begun: int = 0,
        is_declared: bool = False,
    ) -> None:
        self._policy = policy
        self._may_show_attachments = is_declared or policy.findings is OnFinding.ALLOW
        self._records = records
        self._recent = deque[str]() if recent is None else recent
        self._detector = detector
        known = [] if records is None else records.placeholders()
        self.placeholders = Placeholders(known, keep=None if records is None else records.keep, said=public)
        self._public, self._kept = public, known
        self._own_messages = OwnMessages(begun)
        self._filter = OutboundFilter(lambda: self.known_secrets, self.placeholders, records, self._own_messages)
        self.found = _FOUND if records is not None and records.has_held_findings() else OPEN
        """Label of findings that may not leave: the run stays on the device from then on."""
        self.told_label = OPEN
        """Label of all that agents were told."""
        self.world = OPEN if records is None else records.spilled()
        """Label of private data that went into tools which change something, and may come back from any tool, in any part of the run."""

    @classmethod
    def of(
        cls, task: Task, *, records: RunRecords | None = None, recent: deque[str] | None = None, instructions: Sequence[str] = ()
    ) -> "RunPrivacy":
        """Return the privacy of a task's run. `instructions`: those of its agents."""
        public = [*texts_of(task.messages), *instructions]
        is_declared = "sensitivity" in task.stated and task.policy.sensitivity is Sensitivity.PUBLIC
        return cls(task.policy.privacy, public, records=records, recent=recent, begun=_begun(task.messages), is_declared=is_declared)

    def aside(self) -> "RunPrivacy":
        """Return the privacy of messages apart from this run's conversation, with the same secrets and placeholders.

        The run may never come to what they tell an agent: what is held back there leaves no trace in it, not even on record.
        """
        _ = self.known_secrets  # computed before the copy, which then shares them
        aside = copy(self)
        aside._records = None
        aside._filter = replace(self._filter, records_held=False)
        return aside

    @cached_property
    def known_secrets(self) -> KnownSecrets:
        """The private values and texts that the run knows of."""
        secrets = KnownSecrets(self._public)
        for placeholder in self._kept:
            secrets.add_text(placeholder.value)
        return secrets

    @cached_property
    def _scanner(self) -> OutboundScanner:
        from .detection.standard import standard_detectors  # most tasks stay on the device, and need none of its patterns

        policy = self._policy
        is_quick = self._detector is None and policy.spacy_model is None and not policy.detectors
        return OutboundScanner(self._detector or standard_detectors(policy.spacy_model, policy.detectors), policy, is_quick=is_quick)

    def may_read(self, member: AgentHandle, label: Label) -> bool:
        """Return whether an agent may be told data with this label."""
        return may_go(label.tier, reach_of(member))

    def needs_placeholders(self, member: AgentHandle, label: Label) -> bool:
        """Return whether an agent that may not be told all of a run with this label gets placeholders instead."""
        return self._policy.placeholders and not self.may_read(member, label)

    def may_take_over(self, member: AgentHandle, label: Label, opening: Label) -> bool:
        """Return whether an agent may take over a run with this label, with placeholders if allowed. `opening`: the label of the task."""
        if self.may_read(member, label.joined(self.found)):
            return True
        return self._policy.placeholders and self.may_read(member, opening.joined(self.found))

    async def spill(self, label: Label) -> None:
        """Record that private data with this label are about to go into a tool that changes something."""
        world = self.world.joined(label)
        if world == self.world:
            return
        self.world = world
        if self._records is not None:
            await in_thread(self._records.spill, world)

    def begin_part(self, messages: Sequence[Message]) -> None:
        """Begin a part of the run whose conversations begin with these messages. None of them counts as the next agent's own words."""
        self._own_messages.begun = _begun(messages)

    def add_private_results(self, messages: Sequence[Message], private: Iterable[PrivateResult]) -> None:
        """Add the private results of a conversation to the known secrets.

        The result of a call that a placeholder went into is left out if it only repeats the caller's own words: looking for it would tell
        the caller which of its words were returned.
        """
        said = normalize(" ".join(text for message in messages if message.role == "assistant" for text in texts_of([message])))
        for each in private:
            result = messages[each.position].tool_result
            if result is not None and not (each.is_derived and normalize(result.content) in said):
                self.known_secrets.add_text(result.content)

    async def replace_private_results(
        self, member: AgentHandle, messages: Sequence[Message], private: Sequence[PrivateResult]
    ) -> tuple[Message, ...]:
        """Return the conversation with a placeholder in the place of each private result, failed or not.

        Raises `PrivacyViolation` if the placeholders cannot be stored.
        """
        self.add_private_results(messages, private)
        by_position = {result.position: result for result in private}

        def replace() -> tuple[Message, ...]:
            return tuple(
                self._replace_result(message, by_position[position]) if position in by_position else message
                for position, message in enumerate(messages)
            )

        return await self._storing(member, replace)

    async def filter_request(self, member: AgentHandle, request: StepRequest, label: Label, *, role: str) -> OutboundRequest:
        """Return the request in the form in which it may go to an agent. `label`: the label of its content.

        Raises `PrivacyViolation` if it may not go there in any form.
        """
        label = label.joined(self.found)
        if not self.may_read(member, label):
            because = f"{member.name} may not read this conversation: it holds private data from {', '.join(label.told_origins)}"
            await self._hold(OutboundRequest(self._filter, request, member, label, role), because, {})
        self.told_label = self.told_label.joined(label)
        if member.side is Side.NEAR:
            outbound = OutboundRequest(self._filter, self._for_near(member, request, label), member, label, role)
            if member.is_elsewhere:
                await outbound.log_sent(member.place, {})
            return outbound
        await self._hold_unread(OutboundRequest(self._filter, request, member, label, role))
        request = self._without_private_states(request)
        own = self._own_messages.positions(member, request.messages, role)
        if self._policy.findings is OnFinding.PLACEHOLDER:
            scanned = tuple(message for position, message in enumerate(request.messages) if position not in own)
        else:  # redacting pieces one by one would hide what they make together
            request = map_request_texts(request, self.placeholders.redact, but=own)
            scanned = request.messages
        found = await self._scanner.scan(texts_of(scanned), texts_said(scanned), self._recent)
        outbound = OutboundRequest(self._filter, request, member, label, role)
        reason = await self._redact_findings(outbound, member, found, own)
        await outbound.check_and_log(reason, _counts(found))
        self._recent.extend(end for text in texts_said(outbound.request.messages) if (end := text[-REACH:]) not in self._recent)
        return outbound

    def fill_state(self, state: dict[str, Any], *, is_json: bool) -> dict[str, Any]:
        """Return the final state of a task with placeholders filled in for its user. `is_json`: the answer is JSON."""
        if not len(self.placeholders):
            return state
        filled: dict[str, Any] = {name: map_texts(state[name], self.placeholders.fill_for_display) for name in _READ if name in state}
        filled["messages"][-1]["text"] = self.placeholders.fill_for_display(state["messages"][-1]["text"], in_json=is_json)
        return {**state, **filled}

    def fill_event(self, event: V) -> V:
        """Return an event of the run with placeholders filled in for its user."""
        if not len(self.placeholders):
            return event
        told = event.model_dump(mode="json")
        filled = map_texts(told, self.placeholders.fill_for_display)
        return event if filled == told else event.model_validate(filled)

    async def end(self) -> None:
        """End the run: remove its placeholders from the records."""
        if self._records is None or not (len(self.placeholders) or self.world.origins):
            return
        try:
            await in_thread(self._records.end)
        except StoreError as error:  # they are encrypted; they go when their run's record does
            logger.warning("a run's placeholders could not be removed: %s", error)

    def _without_private_states(self, request: StepRequest) -> StepRequest:
        """Return the request without provider states that hold data which has become private since."""
        if not any(message.state for message in request.messages):
            return request

        def is_private(state: ProviderState | None) -> bool:
            return state is not None and self.known_secrets.is_in(state.model_dump_json().encode(errors="ignore"))

        messages = tuple(message.without_state if is_private(message.state) else message for message in request.messages)
        return request.model_copy(update={"messages": messages})

    def _for_near(self, member: AgentHandle, request: StepRequest, label: Label) -> StepRequest:
        if len(self.placeholders):
            request = map_request_texts(request, partial(self.placeholders.fill, reach=reach_of(member)))
        is_marked = label.tier is Tier.SHARED or request.sensitivity is Sensitivity.PRIVATE
        return request if is_marked else request.model_copy(update={"sensitivity": Sensitivity.PRIVATE})

    async def _redact_findings(self, outbound: OutboundRequest, member: AgentHandle, found: Findings, own: frozenset[int]) -> str:
        """Redact the request as its findings demand, and return the reason for it. Raises `PrivacyViolation` if it may not leave."""
        request = outbound.request
        if not found:
            outbound.request = map_request_texts(request, self.placeholders.redact, but=own)
            return "nothing in it may not be shared"
        counts, choice = _counts(found), self._policy.findings
        if choice is OnFinding.ALLOW:
            return "[policy.privacy] findings allows what the detectors found"
        for finding in _all(found):
            self.known_secrets.add(finding.text)
        if choice is OnFinding.STAY or UNCHECKED in counts:
            self.found = _FOUND
            await self._hold(outbound, _objection(member, counts), counts)
        outbound.request = await self._storing(member, partial(self._with_placeholders, request, found, own))
        return "placeholders stand where the detectors found something"

    async def _hold_unread(self, outbound: OutboundRequest) -> None:
        """Raise `PrivacyViolation` if the request carries attachments, which no detector can read, and they may not leave so."""
        carried = sum(len(message.attachments) for message in outbound.request.messages)
        if not carried or self._may_show_attachments:
            return
        self.found = _FOUND
        because = f"the message to {outbound.member.name} carries {carried} images or documents, which no detector can read"
        await self._hold(outbound, because, {UNCHECKED: carried}, hint=_SHOWN_HINT)

    async def _hold(self, outbound: OutboundRequest, because: str, findings: Mapping[str, int], *, hint: str = _HELD_HINT) -> NoReturn:
        await outbound.log_held(because, findings)
        raise PrivacyViolation(because, hint=hint)

    async def _storing(self, member: AgentHandle, make: Callable[[], T]) -> T:
        """Call `make`, which stores new placeholders. Raises `PrivacyViolation` if they cannot be stored."""
        try:
            return await in_thread(make)
        except StoreError as error:
            raise not_logged(member, error) from error

    def _replace_result(self, message: Message, private: PrivateResult) -> Message:
        result = message.tool_result
        assert result is not None, "only results of tools are replaced"
        name = self.placeholders.name_for_result(
            private.id, result.content, _WHOLE, tier=Tier.DEVICE, origin=f"tool {result.name}", is_derived=private.is_derived
        )
        return Message.tool(result.model_copy(update={"content": f"{name}\n{_TOLD}", "is_error": False}))

    def _with_placeholders(self, request: StepRequest, found: Findings, own: frozenset[int]) -> StepRequest:
        types = {finding.text: finding.type for finding in _all(found)}
        names = self.placeholders.names_for(types, tier=Tier.USER, origin=_DETECTORS)

        def redact(text: str) -> str:
            for finding in reversed(found.get(text, ())):
                text = text[: finding.start] + names[finding.text] + text[finding.end :]
            return self.placeholders.redact(text)

        return map_request_texts(request, redact, but=own)


def _begun(messages: Sequence[Message]) -> int:
    """Return the number of messages that a conversation begins with, without a system message in front."""
    return len(messages) - (messages[0].role == "system")


def reach_of(member: AgentHandle) -> Tier:
    """Return how far data told to an agent go: to this device, to another one of the user, or anywhere."""
    if member.side is Side.FAR:
        return Tier.SHARED
    return Tier.USER if member.is_elsewhere else Tier.DEVICE


def _all(found: Findings) -> Iterable[PrivateFinding]:
    return (finding for findings in found.values() for finding in findings)


def _counts(found: Findings) -> Counter[str]:
    return Counter(finding.type for finding in _all(found))


def _objection(member: AgentHandle, counts: Mapping[str, int]) -> str:
    if UNCHECKED in counts:
        return f"the message to {member.name} could not be scanned for private data"
    listed = ", ".join(f"{count} {type}" for type, count in sorted(counts.items()))
    return f"the message to {member.name} looks private ({listed})"
