"""Labels: what a run has seen decides who may be told of it, and what is declared of a tool decides whether it runs."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nearfar import Hybrid, tool
from nearfar.orchestrator.task.labels import Integrity, Label, join_labels
from nearfar.orchestrator.task.policy import Policy
from nearfar.protocols import ConfigError, PrivacyViolation, ScriptedAgent, Sensitivity, Side, ToolCall
from nearfar.protocols.items import TIERS, Tier

pytestmark = pytest.mark.anyio

PUBLIC = Policy(sensitivity=Sensitivity.PUBLIC)
READ = ToolCall(id="1", name="read_diary", arguments={"day": "monday"})
SECRET = "the vault opens at nine"
LABELS = st.builds(
    Label,
    tier=st.sampled_from(TIERS),
    integrity=st.sampled_from(Integrity),
    origins=st.lists(st.sampled_from("abc"), unique=True).map(tuple),
)


@tool(returns="device", effect="read")
def read_diary(day: str) -> str:
    """What was written on a day."""
    return SECRET


def agents(near: Sequence[object], far: Sequence[object]) -> tuple[ScriptedAgent, ScriptedAgent]:
    return ScriptedAgent(near, name="near"), ScriptedAgent(far, name="far", side=Side.FAR)  # type: ignore[arg-type]  # scripts mix kinds


async def test_a_far_agent_that_called_a_private_tool_is_not_told_what_it_returned() -> None:
    near, far = agents([READ, "it is about a vault"], [READ, "never reached"])
    async with Hybrid(near=near, far=far, tools=[read_diary], policy=PUBLIC) as hybrid:
        result = await hybrid.run("What is in my diary?", strategy="route", mode="prefer_in_cloud")
    assert result.side is Side.NEAR
    assert len(far.requests) == 1
    assert all(SECRET not in request.model_dump_json() for request in far.requests)
    assert near.requests[-1].sensitivity is Sensitivity.PRIVATE
    assert any("tool read_diary" in reason for reason in result.reasons)


async def test_a_run_without_a_near_agent_ends_where_a_private_tool_has_returned() -> None:
    _, far = agents([], [READ, "never reached"])
    async with Hybrid(far=far, tools=[read_diary], policy=PUBLIC) as hybrid:
        with pytest.raises(PrivacyViolation, match="read_diary"):
            await hybrid.run("What is in my diary?", strategy="cloud")
    assert len(far.requests) == 1


async def test_a_doubtful_draft_with_private_results_is_not_escalated() -> None:
    near, far = agents([READ, "Tomas Berg has 7 vaults"], ["never reached"])
    async with Hybrid(near=near, far=far, tools=[read_diary], policy=PUBLIC) as hybrid:
        result = await hybrid.run("What is in my diary?", strategy="cascade")
    assert result.side is Side.NEAR
    assert far.requests == []


async def test_a_call_that_needs_a_yes_is_not_run_where_nobody_can_be_asked() -> None:
    @tool(approval=True)
    def send(text: str) -> str:
        """Send a text."""
        raise NotImplementedError

    near, _ = agents([ToolCall(id="1", name="send", arguments={"text": "hi"}), "I could not"], [])
    async with Hybrid(near=near, tools=[send]) as hybrid:
        result = await hybrid.run("Send hi")
    assert result.text == "I could not"
    told = near.requests[-1].messages[-1].tool_result
    assert told is not None
    assert told.is_error
    assert "there is no approver" in told.content


@pytest.mark.parametrize(
    "options", [{"effect": "often"}, {"returns": "mars"}, {"sends": "x"}, {"source": "y"}, {"sinks": ["z"]}, {"what": 1}]
)
def test_a_tool_cannot_be_declared_what_there_is_not(options: dict[str, object]) -> None:
    with pytest.raises(ConfigError) as caught:
        tool(**options)(lambda: None) if "what" in options else tool(name="named", **options)(_nothing)  # type: ignore[call-overload]  # wrong
    assert caught.value.hint


def _nothing(text: str) -> str:
    return text


@given(LABELS, LABELS, LABELS)
def test_joining_labels_never_makes_them_more_public_or_more_trusted(one: Label, other: Label, third: Label) -> None:
    both = one.joined(other)
    assert TIERS.index(both.tier) == min(TIERS.index(one.tier), TIERS.index(other.tier))
    assert (both.integrity is Integrity.TRUSTED) == (one.integrity is other.integrity is Integrity.TRUSTED)
    assert set(both.origins) == {*one.origins, *other.origins}
    assert join_labels([one, other, third]) == one.joined(other.joined(third))
    assert both.joined(both) == both
    assert one.joined(Label()) == one


def test_the_strictest_tier_makes_a_text_private() -> None:
    assert [Label(tier=tier).sensitivity for tier in (Tier.SHARED, Tier.USER, Tier.DEVICE)] == ["public", "private", "private"]
