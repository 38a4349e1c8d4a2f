"""An agent far away learns nothing of a value from what becomes of calls into which its placeholder goes, beyond a bound."""

import re
from collections.abc import Callable, Sequence

import pytest

from benchmarks.fault_figures.placeholders import ORACLES, Oracle, measured_bits
from nearfar import Hybrid, Tier, tool
from nearfar.orchestrator.hybrid.arguments import TaskOptions
from nearfar.orchestrator.safety.placeholders import MOST_CALLS, Placeholder, Placeholders
from nearfar.orchestrator.task.policy import OnFinding, Policy, PrivacyConfig
from nearfar.protocols import (
    ApprovalRequest,
    Message,
    PrivacyViolation,
    ScriptedAgent,
    Sensitivity,
    Side,
    StepRequest,
    ToolCall,
    ToolResult,
)
from nearfar.protocols.fakes import Reply

pytestmark = pytest.mark.anyio

PLACEHOLDER = re.compile(r"<[A-Z_]+_\d+_[a-z0-9]{6}>")
COVERED = Policy(sensitivity=Sensitivity.PUBLIC, maximum_turns=40, privacy=PrivacyConfig(placeholders=True))
HIDDEN = Policy(sensitivity=Sensitivity.PUBLIC, privacy=PrivacyConfig(findings=OnFinding.PLACEHOLDER))
BOTH = COVERED.model_copy(update={"privacy": PrivacyConfig(findings=OnFinding.PLACEHOLDER, placeholders=True)})
FAR: TaskOptions = {"mode": "prefer_in_cloud", "strategy": "route"}
SECRET = "the vault opens at nine"


@tool(returns="device", effect="read", source="internal_tool")
def read_secret() -> str:
    """A secret."""
    return SECRET


@tool(effect="read", source="internal_tool")
def spell(text: str) -> str:
    """Spell a text; fail for one that has no vault in it."""
    if "vault" not in text:
        raise ValueError("there is no vault in it")
    return "-".join(text)


def far_agent(script: Callable[[StepRequest], Reply]) -> ScriptedAgent:
    return ScriptedAgent(script, name="far", side=Side.FAR)


def results(request: StepRequest) -> list[ToolResult]:
    return [message.tool_result for message in request.messages if message.tool_result is not None]


def calling(number: int, name: str, **arguments: str) -> ToolCall:
    return ToolCall(id=str(number), name=name, arguments=dict(arguments))


@pytest.mark.parametrize("oracle", ORACLES)
async def test_views_of_different_secrets_are_the_same(oracle: Oracle) -> None:
    """An agent that names guesses is asked no more once one is right, which is a bit."""
    assert await measured_bits(oracle, 4) <= (oracle is ORACLES[-1])


async def test_equal_results_have_placeholders_of_their_own_that_stay_the_same() -> None:
    def far(request: StepRequest) -> Reply:
        turn = len(results(request))
        return calling(turn, "read_secret") if turn < 3 else " ".join(PLACEHOLDER.findall(request.model_dump_json()))

    cloud = far_agent(far)
    async with Hybrid(far=cloud, tools=[read_secret], policy=COVERED) as hybrid:
        result = await hybrid.run("Read it", **FAR)
    seen = [[PLACEHOLDER.findall(each.content)[0] for each in results(request)] for request in cloud.requests]
    assert len(set(seen[-1])) == 3
    assert all(earlier == seen[-1][: len(earlier)] for earlier in seen)
    assert result.text == " ".join([SECRET] * 3)


async def test_failed_call_that_a_placeholder_went_into_looks_like_any_other() -> None:
    def far(request: StepRequest) -> Reply:
        names = PLACEHOLDER.findall(request.model_dump_json())
        match len(results(request)):
            case 0:
                return calling(0, "read_secret")
            case 1:
                return calling(1, "spell", text=names[0])
            case 2:
                return calling(2, "spell", text=f"{results(request)[1].content.splitlines()[0]}")
            case _:
                return "Done."

    cloud = far_agent(far)
    async with Hybrid(far=cloud, tools=[read_secret, spell], policy=COVERED) as hybrid:
        await hybrid.run("Spell it", **FAR)
    good, failed = results(cloud.requests[-1])[1:]
    assert (good.is_error, failed.is_error) == (False, False)
    assert PLACEHOLDER.sub("", good.content) == PLACEHOLDER.sub("", failed.content)


@tool(effect="read", source="external_tool")
def read_page() -> str:
    """A page."""
    return "Hello."


@tool(effect="at_most_once", source="internal_tool", sinks=["code"])
def unlock(code: str) -> str:
    """Unlock."""
    return "done"


@tool(effect="read", source="internal_tool", sinks=["code"])
def look_up(code: str) -> str:
    """Look up."""
    return "done"


@pytest.mark.parametrize("name", ["unlock", "look_up"])
@pytest.mark.parametrize("place", ["a result", "the prompt", "an address in the prompt"])
async def test_guard_tells_an_agent_nothing_of_what_it_saw_a_placeholder_of(name: str, place: str) -> None:
    """Guesses in the agent's own words are not counted, and short ones pass the last look."""

    @tool(returns="device", effect="read", source="internal_tool")
    def read_code() -> str:
        """The code."""
        return code if place == "a result" else "nothing"

    def far(request: StepRequest) -> Reply:
        turn = len(results(request))
        guesses = calling(2, name, code="4711"), calling(3, name, code="Elm")
        replies: list[Reply] = [calling(0, "read_code"), calling(1, "read_page"), *guesses, "Done."]
        return replies[turn]

    told = []
    for code, street in (("4711", "Elm"), ("8822", "Oak")):
        prompt = {"a result": "Unlock it", "the prompt": f"My PIN: {code}. Unlock it"}.get(place, f"I live at 12 {street} Road. Unlock it")
        cloud = far_agent(far)
        async with Hybrid(far=cloud, tools=[read_code, read_page, unlock, look_up], policy=BOTH) as hybrid:
            await hybrid.run(prompt, **FAR)
        told.append(results(cloud.requests[-1])[-2:])
    assert told[0] == told[1]


async def test_guard_still_lets_an_agent_act_on_what_it_was_told() -> None:
    def far(request: StepRequest) -> Reply:
        turn = len(results(request))
        hidden = PLACEHOLDER.findall(request.messages[0].text)[0]
        replies: list[Reply] = [calling(0, "read_page"), calling(1, "look_up", code="1234"), calling(2, "look_up", code=hidden), "Done."]
        return replies[turn]

    cloud = far_agent(far)
    async with Hybrid(far=cloud, tools=[read_page, look_up], policy=BOTH) as hybrid:
        options: TaskOptions = {**FAR, "allowed_tools": ["read_page", "look_up"]}
        await hybrid.run("Look up ticket 1234 for tomas@example.org", **options)
    assert [each.is_error for each in results(cloud.requests[-1])] == [False, False, False]


async def test_placeholders_go_into_so_many_calls_of_a_run_and_no_more() -> None:
    def far(request: StepRequest) -> Reply:
        names, turn = PLACEHOLDER.findall(request.model_dump_json()), len(results(request))
        if turn == 0:
            return calling(0, "read_secret")
        return calling(1, "spell", text=names[0]) if turn <= MOST_CALLS + 2 else "Done."

    cloud = far_agent(far)
    async with Hybrid(far=cloud, tools=[read_secret, spell], policy=COVERED) as hybrid:
        await hybrid.run("Spell it", **FAR)
    _, *spelled = results(cloud.requests[-1])
    assert [f"at most {MOST_CALLS} calls" in each.content for each in spelled] == [False] * MOST_CALLS + [True] * 2


def test_call_that_waits_for_an_approval_counts_once_and_those_of_earlier_processes_count() -> None:
    kept: list[Placeholder] = []
    placeholders = Placeholders(keep=kept.extend)
    name = placeholders.name_for(SECRET, "private", tier=Tier.SHARED, origin="x")
    for _ in range(3 * MOST_CALLS):
        placeholders.fill_call(calling(1, "spell", text=name), spell, turn=1)
    for number in range(MOST_CALLS):
        placeholders.name_for_result(f"{number}", "True", "private", tier=Tier.SHARED, origin="x", is_derived=True)
    with pytest.raises(PrivacyViolation, match=f"at most {MOST_CALLS} calls"):
        Placeholders(kept).fill_call(calling(1, "spell", text=name), spell, turn=1)


async def test_agent_is_not_told_which_of_its_own_words_are_private() -> None:
    """It learns nothing from words of its own, and would learn from seeing one of them replaced which of its guesses is right."""
    guesses = "ann@example.org tomas@example.org"

    def far(request: StepRequest) -> Reply:
        return calling(1, "spell", text=f"vault {guesses}") if len(request.messages) == 1 else "Done."

    cloud = far_agent(far)
    async with Hybrid(far=cloud, tools=[spell], policy=HIDDEN) as hybrid:
        with pytest.raises(PrivacyViolation):
            await hybrid.run("Write to tomas@example.org", **FAR)
    assert len(cloud.requests) == 1, "and is asked no more once it has named a private value"


async def test_words_that_the_user_brings_along_are_not_the_agents_own() -> None:
    call = calling(1, "spell", text="tomas@example.org")
    begun = [
        Message.user("Go"),
        Message.assistant("I do", tool_calls=(call,)),
        Message.tool(ToolResult(call_id="1", name="spell", content="-")),
    ]
    cloud = far_agent(lambda request: "Done.")
    async with Hybrid(far=cloud, tools=[spell], policy=HIDDEN) as hybrid:
        await hybrid.run(begun, **FAR)
    assert "tomas" not in cloud.requests[0].model_dump_json()


@pytest.mark.parametrize("decided", [None, False])
async def test_refused_call_does_not_tell_which_of_its_values_was_objected_to(decided: bool | None) -> None:
    """The guard names arguments whose values are not the user's words: one bit for each of them."""

    @tool(effect="read", source="external_tool")
    def read_page() -> str:
        """A page."""
        return "hello"

    @tool(sinks=["account", "place"])
    def pay(account: str, place: str) -> str:
        """Pay somebody."""
        return "paid"

    def far(request: StepRequest) -> Reply:
        found = results(request)
        name = PLACEHOLDER.findall(found[0].content)[0] if found else ""
        asking = [calling(0, "read_secret"), calling(1, "read_page"), calling(2, "pay", account=name, place="elsewhere")]
        return asking[len(found)] if len(found) < 3 else "Done."

    async def decide(requests: Sequence[ApprovalRequest]) -> dict[str, bool]:
        return {request.id: bool(decided) for request in requests}

    cloud = far_agent(far)
    approver = None if decided is None else decide
    async with Hybrid(far=cloud, tools=[read_secret, read_page, pay], policy=COVERED) as hybrid:
        options: TaskOptions = {**FAR, "approver": approver}
        await hybrid.run("Pay it", **options)
    refused = results(cloud.requests[-1])[-1]
    assert refused.is_error
    assert not {"account", "place", "asked for"} & set(refused.content.replace(":", "").split())
    assert "why not stays" in refused.content
