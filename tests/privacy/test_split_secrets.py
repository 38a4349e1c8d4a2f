"""A value that is cut up between messages, results of tools, or tasks of a session is found all the same."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nearfar import Hybrid, tool
from nearfar.orchestrator.safety.detection import Detectors, PrivateFinding
from nearfar.orchestrator.safety.detection.standard import standard_detectors
from nearfar.orchestrator.safety.scanner import Findings, OutboundScanner, join_neighbours
from nearfar.orchestrator.task.policy import OnFinding, Policy, PrivacyConfig
from nearfar.protocols import Message, PrivacyViolation, ScriptedAgent, Sensitivity, Side, StepRequest, ToolCall, ToolResult
from nearfar.protocols.fakes import Reply

pytestmark = pytest.mark.anyio

CARD = "4111111111111111"
VALUES = {"card": CARD, "iban": "GB29 NWBK 6016 1331 9268 19", "email": "jane.doe@example.org", "key": "ghp_" + "aB3dE6gH9j" * 4}
PUBLIC = Policy(sensitivity=Sensitivity.PUBLIC)


async def found_in(texts: Sequence[str], before: Sequence[str] = ()) -> Findings:
    return await OutboundScanner(standard_detectors(), PrivacyConfig()).scan(texts, before=before)


def pieces(found: Findings) -> list[tuple[str, str]]:
    return [(finding.type, finding.text) for findings in found.values() for finding in findings]


@pytest.mark.parametrize("type", VALUES)
async def test_value_that_is_cut_anywhere_between_two_texts_is_found(type: str) -> None:
    value = VALUES[type]
    for place in range(1, len(value)):
        assert type in [name for name, _ in pieces(await found_in([f"it is {value[:place]}", value[place:]]))], place


@pytest.mark.parametrize(
    ("texts", "found"),
    [
        (["It begins with 41111111", "And?", "and ends with 11111111."], ["41111111", "11111111"]),
        (["4111", "1111", "1111", "1111"], ["4111", "1111"]),
        (["first 4111", "then 1111", "then 1111", "and last 1111"], ["4111", "1111", "1111"]),
        (['{"number": "4111 1111"}', '{"number": "1111 1111"}'], ["4111 1111", "1111 1111"]),
        (["4 1 1 1 1 1 1 1", "1 1 1 1 1 1 1 1"], ["4 1 1 1 1 1 1 1", "1 1 1 1 1 1 1 1"]),
        (["GB29 NWBK 6016 please", "then 1331 9268 19, thanks"], ["GB29 NWBK 6016", "1331 9268 19"]),
        (["It begins with jane.doe@exam", "and goes on with ple.org, see?"], ["jane.doe@exam", "ple.org"]),
        (["My name there is jane", "and then comes @example.org"], ["jane", "@example.org"]),
        (
            ["The key begins with ghp_aBcdEfgHijaBcdEf", "and ends with gHijaBcdEfgHijaBcdEfgHij"],
            ["ghp_aBcdEfgHijaBcdEf", "gHijaBcdEfgHijaBcdEfgHij"],
        ),
        (["Her number is 460-89", "and -9847"], ["460-89", "-9847"]),
    ],
)
async def test_pieces_are_found_among_other_words(texts: list[str], found: list[str]) -> None:
    assert [text for _, text in pieces(await found_in(texts))] == found


@pytest.mark.parametrize(
    "texts",
    [
        ["Thanks a lot.", "The flight 1234 costs 120.50", "Order 81234567 was sent on 2026-11-21", "Order 91234568"],
        ["Look at example.org", "Thanks, @bob"],
        ["Call me on 415 555", "or take 2671 of them"],
        ["", " ", "4111", "\n"],
    ],
)
async def test_texts_that_make_nothing_together_are_left_alone(texts: list[str]) -> None:
    assert await found_in(texts) == {}


async def test_what_one_text_holds_alone_does_not_go_on_into_the_next() -> None:
    assert pieces(await found_in(["Write to jane.doe@example.org", "Thanks!"])) == [("email", "jane.doe@example.org")]


async def test_other_half_of_what_has_left_before_is_found() -> None:
    assert pieces(await found_in(["11111111, please"], before=["My card is 41111111"])) == [("card", "11111111")]


async def test_what_left_before_and_comes_again_is_read_once() -> None:
    long = f"11111111 is the order of {'x ' * 100} 41111111"
    assert await found_in([long, "And?"], before=[long[-128:]]) == {}


@given(st.lists(st.text(alphabet="41 .@aZ-\n", max_size=300), max_size=6))
def test_joins_know_where_their_parts_stand_and_are_few_and_short(texts: list[str]) -> None:
    made = list(join_neighbours(texts))
    assert len(made) <= 10 * len(texts)
    for join in made:
        assert join.text == "".join(texts[part.text][part.start : part.end] for part in join.parts)
        assert [part.text for part in join.parts] == sorted({part.text for part in join.parts})
        assert len(join.text) <= 256
        spread = join.locate(PrivateFinding(0, len(join.text), "card", join.text))
        assert "".join(texts[part.text][part.start : part.end] for part in spread) == (join.text if len(spread) > 1 else "")


async def test_number_in_two_results_of_tools_stays_on_the_device() -> None:
    @tool(effect="read", source="internal_tool")
    def read_half(number: int) -> str:
        """Half of the number of a card."""
        return f"Half {number} is {CARD[8 * number : 8 * number + 8]}"

    def script(request: StepRequest) -> Reply:
        turn = len(request.messages) // 2
        return ToolCall(id=str(turn), name="read_half", arguments={"number": turn}) if turn < 2 else "done"

    far, near = (ScriptedAgent(script, name=side.value, side=side) for side in (Side.FAR, Side.NEAR))
    async with Hybrid(near=near, far=far, tools=[read_half], policy=PUBLIC) as hybrid:
        result = await hybrid.run("Read both halves", strategy="route", mode="prefer_in_cloud")
    assert result.served_on_device
    assert [len(request.messages) for request in far.requests] == [1, 3]


async def test_numbers_beside_each_other_in_the_arguments_of_a_call_are_not_put_together() -> None:
    call = ToolCall(id="1", name="look_up", arguments={"numbers": [CARD[:8], CARD[8:]]})
    history = [
        Message.user("Look"),
        Message.assistant(tool_calls=(call,)),
        Message.tool(ToolResult(call_id="1", name="look_up", content="ok")),
    ]
    far = ScriptedAgent(["done"], name="far", side=Side.FAR)
    async with Hybrid(far=far, policy=PUBLIC) as hybrid:
        result = await hybrid.run([*history, Message.user("So?")], strategy="cloud")
    assert result.text == "done"


async def test_pieces_leave_as_placeholders_and_come_back_as_they_were() -> None:
    far = ScriptedAgent(lambda request: f"So it is {request.messages[0].text[-16:]}", name="far", side=Side.FAR)
    policy = PUBLIC.model_copy(update={"privacy": PrivacyConfig(findings=OnFinding.PLACEHOLDER)})
    said = [Message.user("4111"), Message.assistant("go on"), Message.user("1111 1111"), Message.user("and 1111, please")]
    async with Hybrid(far=far, policy=policy) as hybrid:
        result = await hybrid.run(said, strategy="cloud")
    sent = far.requests[0].messages
    assert [message.text.count("<CARD_") for message in sent] == [1, 0, 1, 1]
    assert not any("1111" in message.text for message in sent)
    assert result.text == "So it is 4111"


@pytest.mark.parametrize(("session", "is_held"), [("s", True), ("another", False)])
async def test_number_in_two_tasks_of_a_session_does_not_leave_whole(session: str, *, is_held: bool) -> None:
    far = ScriptedAgent(["And?", "Thanks"], name="far", side=Side.FAR)
    async with Hybrid(far=far, policy=PUBLIC) as hybrid:
        await hybrid.run("My card begins with 41111111", session="s", strategy="cloud")
        if is_held:
            with pytest.raises(PrivacyViolation, match="1 card"):
                await hybrid.run("and ends with 11111111", session=session, strategy="cloud")
        else:
            await hybrid.run("and ends with 11111111", session=session, strategy="cloud")
    assert len(far.requests) == 2 - is_held


def test_types_without_a_check_are_not_made_of_pieces() -> None:
    join = next(join_neighbours(["Call me on (415) 555", "-2671"]))
    findings = Detectors([standard_detectors()], {"phone"}).find(join.text)
    assert findings
    assert [join.locate(finding) for finding in findings] == [[]]
