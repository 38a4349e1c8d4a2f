"""No detector can read an image: without the user's own word for the task it does not leave the device."""

from pathlib import Path

import pytest
from attached import PAGE, PIXEL

from nearfar import Hybrid, Records
from nearfar.orchestrator.hybrid.arguments import TaskOptions
from nearfar.orchestrator.task.policy import OnFinding, Policy, PrivacyConfig
from nearfar.protocols import Capabilities, Message, PrivacyViolation, ScriptedAgent, Sensitivity, Side, ToolCall, ToolResult

pytestmark = pytest.mark.anyio

SEES = Capabilities(images=True, files=True)
ASKED = Message.user("What is this?", (PIXEL, PAGE))
FAR: TaskOptions = {"mode": "prefer_in_cloud", "strategy": "route"}


def public(**privacy: object) -> Policy:
    return Policy(sensitivity=Sensitivity.PUBLIC, privacy=PrivacyConfig.model_validate(privacy))


def pair() -> tuple[ScriptedAgent, ScriptedAgent]:
    near, far = (ScriptedAgent(lambda _: "a pixel", name=side, side=side, capabilities=SEES) for side in (Side.NEAR, Side.FAR))
    return near, far


@pytest.mark.parametrize("findings", [OnFinding.STAY, OnFinding.PLACEHOLDER])
@pytest.mark.parametrize("placeholders", [True, False])
async def test_an_image_in_a_task_that_only_its_policy_calls_public_stays_here(
    findings: OnFinding, placeholders: bool, tmp_path: Path
) -> None:
    near, far = pair()
    policy = public(findings=findings, placeholders=placeholders)
    async with Hybrid(near=near, far=far, policy=policy, records=Records(tmp_path)) as hybrid:
        result = await hybrid.run([ASKED], **FAR)
    assert (result.side, far.requests) == (Side.NEAR, [])
    assert any("2 images or documents, which no detector can read" in reason for reason in result.reasons)


async def test_without_a_near_agent_that_reads_it_the_task_is_refused_with_the_reason() -> None:
    _, far = pair()
    async with Hybrid(near=ScriptedAgent([]), far=far, policy=public()) as hybrid:
        with pytest.raises(PrivacyViolation, match="which no detector can read") as refused:
            await hybrid.run([ASKED], **FAR)
    assert 'sensitivity="public"' in refused.value.hint
    assert not far.requests


async def test_a_task_that_is_itself_declared_public_shows_its_images() -> None:
    near, far = pair()
    async with Hybrid(near=near, far=far, policy=public()) as hybrid:
        assert (await hybrid.run([ASKED], sensitivity="public", mode="prefer_in_cloud", strategy="route")).side is Side.FAR
    assert far.requests[0].messages[-1].attachments == (PIXEL, PAGE)


async def test_a_policy_that_allows_all_findings_shows_images() -> None:
    near, far = pair()
    async with Hybrid(near=near, far=far, policy=public(findings=OnFinding.ALLOW)) as hybrid:
        assert (await hybrid.run([ASKED], **FAR)).side is Side.FAR


async def test_an_image_is_private_by_default() -> None:
    near, far = pair()
    async with Hybrid(near=near, far=far) as hybrid:
        assert (await hybrid.run([ASKED], mode="auto")).side is Side.NEAR
        with pytest.raises(PrivacyViolation):
            await hybrid.run([ASKED], strategy="cloud")
    assert not far.requests


async def test_the_session_does_not_carry_an_image_out_later() -> None:
    near, far = pair()
    async with Hybrid(near=near, far=far, policy=public()) as hybrid:
        chat = hybrid.session("ana")
        await chat.send([ASKED], mode="only_on_device")
        result = await chat.send("And the colour?", unstick=True, mode="prefer_in_cloud", strategy="route")
    assert (result.side, far.requests) == (Side.NEAR, [])


async def test_a_cascade_keeps_an_image_here_when_its_draft_is_rejected() -> None:
    near = ScriptedAgent(lambda _: "a pixel", name="near", capabilities=SEES, confidence=0.1)
    _, far = pair()
    async with Hybrid(near=near, far=far, policy=public()) as hybrid:
        result = await hybrid.run([ASKED], strategy="cascade")
    assert (result.text, far.requests) == ("a pixel", [])


async def test_an_image_in_a_tools_result_stays_as_one_of_the_user_does() -> None:
    called = Message.assistant(tool_calls=(ToolCall(id="c", name="look", arguments={}),))
    shown = Message.tool(ToolResult(call_id="c", name="look", content="a.png"), (PIXEL,))
    near, far = pair()
    async with Hybrid(near=near, far=far, policy=public()) as hybrid:
        result = await hybrid.run([Message.user("Look."), called, shown], **FAR)
    assert (result.side, far.requests) == (Side.NEAR, [])
    assert near.requests[0].messages[-1].attachments == (PIXEL,)
