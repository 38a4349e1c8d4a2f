"""Idempotent effects have one name, whoever makes the call: over hand-overs and retries, with and without a durable run."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from nearfar import Hybrid, Policy, Tool, effect_key, tool
from nearfar.orchestrator.task.stores import RunsConfig
from nearfar.protocols import ScriptedAgent, Side, ToolCall, Unavailable
from nearfar.protocols.fakes import Reply

pytestmark = pytest.mark.anyio

SEND = ToolCall(id="1", name="send", arguments={"text": "hi"})
PLAN = "1. send\n2. answer"


class Letters:
    """A service that knows idempotency keys. `failing`: numbers of the calls whose answers are lost."""

    def __init__(self, *failing: int) -> None:
        self.calls: list[str] = []
        self._failing = failing

    def send(self, text: str) -> str:
        """Send a text."""
        self.calls.append(effect_key())
        if len(self.calls) in self._failing:
            raise TimeoutError("no answer")
        return "sent"

    @property
    def tool(self) -> Tool:
        return tool(effect="idempotent")(self.send)

    @property
    def sent(self) -> int:
        return len(set(self.calls))


def hybrid(letters: Letters, strategy: str, near: Sequence[Reply], far: Sequence[Reply], runs: Path | None) -> Hybrid:
    told = ScriptedAgent([*([PLAN] if strategy == "pevr" else []), *far], name="far", side=Side.FAR)
    policy = Policy.model_validate({"strategy": strategy, "sensitivity": "public"})
    kept = None if runs is None else RunsConfig(folder=runs)
    return Hybrid(near=ScriptedAgent(near, name="near"), far=told, tools=[letters.tool], policy=policy, records=kept)


@pytest.mark.parametrize("is_durable", [False, True])
@pytest.mark.parametrize("strategy", ["cascade", "route", "pevr", "eva"])
async def test_an_agent_that_takes_over_sends_nothing_twice(strategy: str, is_durable: bool, tmp_path: Path) -> None:
    letters = Letters()
    near: list[Reply] = [SEND, Unavailable("out of memory")]
    far: list[Reply] = [SEND, "Sent."]
    async with hybrid(letters, strategy, near, far, tmp_path if is_durable else None) as agents:
        await agents.run("Send hi")
    assert letters.sent == 1


@pytest.mark.parametrize("is_durable", [False, True])
async def test_a_retry_after_an_error_is_the_same_effect_and_a_call_after_a_success_another_one(is_durable: bool, tmp_path: Path) -> None:
    letters = Letters(1)
    async with hybrid(letters, "device", [SEND, SEND, SEND, "Sent twice."], [], tmp_path if is_durable else None) as agents:
        await agents.run("Send hi twice")
    assert [letters.calls.index(key) for key in letters.calls] == [0, 0, 2]


async def test_an_agent_that_takes_over_tries_again_what_has_failed() -> None:
    letters = Letters(1)
    async with hybrid(letters, "cascade", [SEND, Unavailable("out of memory")], [SEND, "Sent."], None) as agents:
        await agents.run("Send hi")
    assert (len(letters.calls), letters.sent) == (2, 1)


@pytest.mark.parametrize("is_durable", [False, True])
async def test_other_tasks_and_other_users_have_effects_of_their_own(is_durable: bool, tmp_path: Path) -> None:
    letters = Letters()
    for number, (user, key) in enumerate((("ann", "a"), ("ann", "a"), ("ann", "b"), ("bob", "a"))):
        folder = tmp_path / str(number) if is_durable else None  # as each user's own machine has
        async with hybrid(letters, "device", [SEND, "Sent."], [], folder) as agents:
            await agents.run("Send hi", user=user, idempotency_key=key)
    assert [letters.calls.index(key) for key in letters.calls] == [0, 0, 2, 3]
