"""Who says what an agent should have done."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from ....protocols import Message, Sensitivity, StepRequest, ToolCall, complete
from ...privacy.run_privacy import RunPrivacy
from ...privacy.texts import changed_message
from ...team import Member
from .record import RecordedRun, RecordedStep, action_of


class Corrector(Protocol):
    """Knows better than the agents of a run."""

    @property
    def name(self) -> str:
        """As a report names it."""
        ...

    async def correct(self, step: RecordedStep) -> Message | None:
        """What the agent should have replied; None: what it replied is right, or nothing is known of such a step."""
        ...


@dataclass(frozen=True)
class Reference:
    """The calls and the answer that do the task. It speaks about executors only, and any order of its calls will do."""

    name: str
    calls: Sequence[ToolCall]
    answer: str

    @classmethod
    def of(cls, run: RecordedRun) -> "Reference":
        """A run that went well."""
        return cls(f"run {run.name}", run.solution, run.answer or "")

    async def correct(self, step: RecordedStep) -> Message | None:
        if step.role != "execute":
            return None
        left = self._left(step.messages)
        wanted = Counter(map(action_of, left))
        made = Counter(map(action_of, step.reply.tool_calls))
        if made and made <= wanted:
            return None
        if not made and not left and same(step.reply.text, self.answer):
            return None
        if not left:
            return Message.assistant(self.answer)
        return Message.assistant("", (left[0].model_copy(update={"id": f"corrected-{step.number}"}),))

    def _left(self, messages: Sequence[Message]) -> list[ToolCall]:
        """Those that the conversation has not made yet."""
        results = {each.tool_result.call_id: each.tool_result for each in messages if each.tool_result is not None}
        made = [call for message in messages for call in message.tool_calls]
        done = Counter(action_of(call) for call in made if call.id in results and not results[call.id].is_error)
        left = []
        for call in self.calls:
            if done[action_of(call)]:
                done[action_of(call)] -= 1
            else:
                left.append(call)
        return left


class StrongerAgent:
    """An agent that is asked what each agent of the run was asked, as far as that may go."""

    def __init__(self, member: Member, run: RecordedRun) -> None:
        self._member = member
        self._label = run.label
        self._tools = tuple(traced.spec for traced in run.tools)
        self._privacy = RunPrivacy.of(run.task)

    @property
    def name(self) -> str:
        return f"agent {self._member.name}"

    async def correct(self, step: RecordedStep) -> Message | None:
        """Raises `PrivacyViolation` where the agent may not be told what the run has seen."""
        tools = self._tools if step.role == "execute" else ()
        asked = StepRequest(messages=step.messages, tools=tools, sensitivity=Sensitivity.PUBLIC)
        departing = await self._privacy.departing(self._member, asked, self._label, role="correct")
        with departing.watched():
            reply = await departing.accepted(await complete(await self._member.open(), departing.request))
        said = changed_message(reply.message, self._privacy.placeholders.filled)
        is_same = said.text.strip() == step.reply.text.strip() and list(map(action_of, said.tool_calls)) == list(
            map(action_of, step.reply.tool_calls)
        )
        return None if is_same else said


def same(answer: str, expected: str) -> bool:
    """Whether two answers agree but for case, spacing and a final full stop."""
    first, second = (" ".join(text.split()).casefold().removesuffix(".") for text in (answer, expected))
    return first == second
