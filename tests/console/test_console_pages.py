"""Pages show what was done, in full and harmless, and are renewed while they are open."""

import asyncio
import json
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing
from pathlib import Path

import httpx
import pytest
from console_face import Tags, fields_of, opened
from hypothesis import given
from hypothesis import strategies as st

from nearfar import ScriptedAgent, Side, StepRequest, ToolCall, tool
from nearfar.orchestrator.console.html import LONGEST_TEXT, Mark, bars, scatter, tag, text
from nearfar.orchestrator.console.view import Channel, Update, patch
from nearfar.protocols import StoreCorrupt
from nearfar.protocols.fakes import Reply

pytestmark = pytest.mark.anyio

HOSTILE = '<script>alert(1)</script><img src=x onerror=alert(1)>\u202egnp.exe\x1b[31m" onload="x\' javascript:alert(1) </textarea></title>'


async def fragments(browser: httpx.AsyncClient, path: str) -> AsyncGenerator[dict[str, str], None]:
    """Yield the parts of a page that have changed, put together from what keeps it up to date."""
    known: dict[str, str] = {}
    async with browser.stream("GET", path) as stream:
        async for line in stream.aiter_lines():
            if line.startswith("data: "):
                changed = json.loads(line.removeprefix("data: "))
                known |= {name: patched(known.get(name, ""), parts) for name, parts in changed.items()}
                yield known


def patched(before: str, parts: list[str | list[int]]) -> str:
    """Return the text that a patch makes of an earlier one."""
    old = before.split("\n") if before else []
    return "\n".join(line for part in parts for line in ([part] if isinstance(part, str) else old[part[0] : part[1]]))


async def ask(browser: httpx.AsyncClient, prompt: str, **more: str) -> str:
    """Ask, and return the name of the conversation."""
    fields = fields_of((await browser.get("/console/")).text, "/console/ask")
    reply = await browser.post("/console/ask", data={**fields, "prompt": prompt, **more})
    assert reply.status_code == 200, reply.text
    return fields["session"]


async def answered(browser: httpx.AsyncClient, session: str, words: str) -> str:
    """Wait until the conversation shows these words, and return it."""
    async with asyncio.timeout(20), aclosing(fragments(browser, f"/console/live/?session={session}")) as renewed:
        async for each in renewed:
            if words in each["talk"]:
                return each["talk"]
    raise AssertionError(words)


async def test_an_answer_tells_who_gave_it_and_why(tmp_path: Path) -> None:
    near = ScriptedAgent(lambda _: "Near.", name="near", model="small", confidence=0.1)
    far = ScriptedAgent(lambda _: "Far.", name="far", side=Side.FAR, model="big")
    async with opened(tmp_path, near, far) as console, console.browser() as browser:
        session = await ask(browser, "What is it?", public="yes")
        talk = await answered(browser, session, "why far")
        assert "far (far, big)" in talk
        assert "near (near) rejected" in talk
        await ask_again(browser, session)
        assert "Near." in await answered(browser, session, "why near")


async def ask_again(browser: httpx.AsyncClient, session: str) -> None:
    fields = fields_of((await browser.get(f"/console/?session={session}")).text, "/console/ask")
    await browser.post("/console/ask", data={**fields, "prompt": "And here?"})


async def test_a_task_stays_on_the_device_unless_the_box_is_ticked(tmp_path: Path) -> None:
    near = ScriptedAgent(lambda _: "Near.", name="near", confidence=0.1)
    far = ScriptedAgent(lambda _: "Far.", name="far", side=Side.FAR)
    async with opened(tmp_path, near, far) as console, console.browser() as browser:
        await answered(browser, await ask(browser, "What is it?"), "why near")
    assert far.requests == []


async def test_a_turn_that_runs_can_be_stopped(tmp_path: Path) -> None:
    begun, never = asyncio.Event(), asyncio.Event()

    async def wait() -> None:
        begun.set()
        await never.wait()

    async with opened(tmp_path, ScriptedAgent(["too late"], name="near", pace=wait)) as console, console.browser() as browser:
        session = await ask(browser, "What is it?")
        await asyncio.wait_for(begun.wait(), 20)
        page = (await browser.get(f"/console/?session={session}")).text
        assert "Working" in page
        again = await browser.post("/console/ask", data={**fields_of(page, "/console/ask"), "prompt": "Now?"})
        assert (again.status_code, "being answered" in again.text) == (400, True)
        await browser.post("/console/stop", data=fields_of(page, "/console/stop"))
        assert "stopped" in (await browser.get(f"/console/?session={session}")).text


@tool(approval=True)
def pay(amount: int, to: str) -> str:
    """Pay somebody."""
    return f"paid {amount} to {to}"


def payer() -> ScriptedAgent:
    def act(request: StepRequest) -> Reply:
        results = [message.tool_result.content for message in request.messages if message.tool_result is not None]
        return results[-1] if results else [ToolCall(id="c", name="pay", arguments={"amount": 7, "to": HOSTILE})]

    return ScriptedAgent(act, name="near", confidence=0.9)


@pytest.mark.parametrize(("answer", "then"), [("yes", "paid 7"), ("no", "the user")])
async def test_a_call_waits_for_a_yes_or_a_no(tmp_path: Path, answer: str, then: str) -> None:
    async with opened(tmp_path, payer(), tools=(pay,)) as console, console.browser() as browser:
        session = await ask(browser, "Pay Ana 7.")
        await answered(browser, session, "/console/approvals")
        page = (await browser.get("/console/approvals")).text
        assert "pay" in page
        assert Tags(page).handlers == []
        await browser.post(f"/console/approvals/{answer}", data=fields_of(page, f"/console/approvals/{answer}"))
        run = console.hybrid.runs.list()[0].id
        async with asyncio.timeout(20):
            async for each in fragments(browser, f"/console/live/run?id={run}"):
                if then in each["run"].lower() and "state good" in each["run"]:
                    break
        assert "No tool call waits" in (await browser.get("/console/approvals")).text


async def test_a_turn_that_waited_for_approval_is_shown_with_its_answer(tmp_path: Path) -> None:
    async with opened(tmp_path, payer(), tools=(pay,)) as console, console.browser() as browser:
        session = await ask(browser, "Pay Ana 7.")
        waits = await answered(browser, session, "/console/approvals")
        assert "needs approval" in waits
        page = (await browser.get("/console/approvals")).text
        await browser.post("/console/approvals/yes", data=fields_of(page, "/console/approvals/yes"))
        talk = await answered(browser, session, "why near")
        assert ("paid 7" in talk, talk.count("Pay Ana 7."), "needs approval" in talk) == (True, 1, False)


async def test_a_turn_whose_run_is_forgotten_while_it_waits_keeps_its_page(tmp_path: Path) -> None:
    async with opened(tmp_path, payer(), tools=(pay,)) as console, console.browser() as browser:
        session = await ask(browser, "Pay Ana 7.")
        await answered(browser, session, "/console/approvals")
        console.hybrid.runs.forget(console.hybrid.runs.list()[0].id)
        assert (await browser.get(f"/console/?session={session}")).status_code == 200


async def test_a_question_has_the_line_ends_that_its_writer_sees(tmp_path: Path) -> None:
    near = ScriptedAgent(lambda _: "Near.", name="near", confidence=0.9)
    async with opened(tmp_path, near) as console, console.browser() as browser:
        await answered(browser, await ask(browser, "One.\r\n\r\nTwo."), "why near")
    assert near.requests[0].messages[-1].text == "One.\n\nTwo."


async def test_a_damaged_trace_keeps_no_call_from_its_answer(tmp_path: Path) -> None:
    async with opened(tmp_path, payer(), tools=(pay,)) as console, console.browser() as browser:
        await answered(browser, await ask(browser, "Pay Ana 7."), "/console/approvals")
        for file in (tmp_path / "runs").glob("traces.db*"):
            file.write_bytes(b"junk" * 5000)
        page = await browser.get("/console/approvals")
        assert (page.status_code, "Approve" in page.text) == (200, True)
        page = await browser.get(f"/console/run?id={console.hybrid.runs.list()[0].id}")
        assert (page.status_code, "Pay Ana 7." in page.text) == (200, True)


async def test_a_defect_of_an_agent_is_told_under_the_question(tmp_path: Path) -> None:
    def fail(_: StepRequest) -> Reply:
        raise ZeroDivisionError("a defect")

    async with opened(tmp_path, ScriptedAgent(fail)) as console, console.browser() as browser:
        page = await answered(browser, await ask(browser, "Hello?"), "this turn failed")
        assert "Hello?" in page


async def test_a_decision_about_an_unknown_call_is_refused(tmp_path: Path) -> None:
    async with opened(tmp_path, payer(), tools=(pay,)) as console, console.browser() as browser:
        await answered(browser, await ask(browser, "Pay Ana 7."), "/console/approvals")
        page = (await browser.get("/console/approvals")).text
        form = {**fields_of(page, "/console/approvals/yes"), "call": "no-such-call"}
        reply = await browser.post("/console/approvals/yes", data=form)
        assert (reply.status_code, "does not wait for" in reply.text) == (404, True)


async def test_hostile_texts_become_no_elements(tmp_path: Path) -> None:
    near = ScriptedAgent(lambda _: HOSTILE + "x" * 1_000_000, name="near", model=HOSTILE, confidence=0.9)
    async with opened(tmp_path, near) as console, console.browser() as browser:
        session = await ask(browser, HOSTILE)
        await answered(browser, session, "why near")
        run = console.hybrid.runs.list()[0].id
        for path in (f"/console/?session={session}", "/console/runs", f"/console/run?id={run}", "/console/money", "/console/privacy"):
            page = (await browser.get(path)).text
            found = Tags(page)
            assert found.handlers == []
            assert (found.names.count("script"), found.names.count("img")) == (1, 0)
            assert not {"\x1b", "\u202e"} & set(page)
            assert len(page) < 40 * LONGEST_TEXT


async def test_runs_of_other_faces_appear_while_the_page_is_open(tmp_path: Path) -> None:
    async with opened(tmp_path, ScriptedAgent(lambda _: "Here.", name="near", confidence=0.9)) as console, console.browser() as browser:
        async with asyncio.timeout(20):
            async for each in fragments(browser, "/console/live/runs"):
                if "What is new?" in each["runs"]:
                    break
                await console.hybrid.run("What is new?", user="ana")


async def test_open_pages_do_not_keep_the_server_from_ending(tmp_path: Path) -> None:
    near = ScriptedAgent(lambda _: "Here.", name="near", confidence=0.9)
    async with opened(tmp_path, near, drain=60) as console, console.browser() as browser, asyncio.timeout(20):
        renewed = fragments(browser, "/console/live/runs")
        assert "runs" in await anext(renewed)
        await console.server.drain()
        assert [each async for each in renewed] == []


async def test_an_unknown_run_and_an_unknown_page_are_told(tmp_path: Path) -> None:
    async with opened(tmp_path, ScriptedAgent([], name="near")) as console, console.browser() as browser:
        for path in ("/console/run?id=nothing", "/console/nothing"):
            reply = await browser.get(path)
            assert (reply.status_code, "That did not work" in reply.text) == (404, True)
        assert (await browser.get("/console/run")).status_code == 400


async def test_a_view_is_rendered_once_for_all_who_watch_it_and_not_for_nobody() -> None:
    rendered = 0
    shown = {"list": "a"}

    async def render() -> dict[str, str]:
        nonlocal rendered
        rendered += 1
        return dict(shown)

    channel = Channel(render)
    async with aclosing(channel.view()) as first, aclosing(channel.view()) as second, asyncio.timeout(20):
        assert await anext(first) == await anext(second) == ({}, {"list": "a"})
        shown["list"] = "b"
        assert await anext(first) == await anext(second) == ({"list": "a"}, {"list": "b"})
    update = Update({"list": "a"}, {"list": "b"})
    assert channel.encoded(update) is channel.encoded(update)
    assert channel._task is None


async def test_a_page_that_fails_once_is_renewed_later() -> None:
    outcomes: Iterator[ValueError | str] = iter([ValueError("a defect"), "mended"])

    async def render() -> dict[str, str]:
        found = next(outcomes, "mended")
        if isinstance(found, ValueError):
            raise found
        return {"list": found}

    async with aclosing(Channel(render, period=0.01).view()) as views, asyncio.timeout(20):
        assert await anext(views) == ({}, {"list": "mended"})


async def test_a_page_that_fails_all_the_time_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    looks = 0

    async def render() -> dict[str, str]:
        nonlocal looks
        looks += 1
        if looks in (1, 10):
            return {"list": str(looks)}
        raise StoreCorrupt("the store is damaged")

    async with aclosing(Channel(render, period=0.001).view()) as views, asyncio.timeout(20):
        await anext(views)
        assert await anext(views) == ({"list": "1"}, {"list": "10"})
    assert [record.message for record in caplog.records].count("a page could not be renewed: the store is damaged") == 1


@given(st.lists(st.sampled_from(["a", "b", "c", ""])), st.lists(st.sampled_from(["a", "b", "c", "d", ""])))
def test_a_patch_makes_the_newer_text_of_the_older_one(before: list[str], after: list[str]) -> None:
    old, new = "\n".join(before), "\n".join(after)
    assert patched(old, patch(old, new)) == new


@given(st.lists(st.sampled_from(["a", ""])))
def test_the_first_patch_of_a_connection_takes_no_line_of_an_earlier_one(after: list[str]) -> None:
    assert patch("", "\n".join(after)) == "\n".join(after).split("\n")


def test_of_a_long_page_only_its_new_lines_are_sent() -> None:
    rows = [f"<tr>row {number}</tr>" for number in range(50)]
    assert patch("\n".join(rows), "\n".join(["<tr>a new row</tr>", *rows[:-1]])) == ["<tr>a new row</tr>", [0, 49]]


@given(st.text())
def test_any_text_stays_a_text(words: str) -> None:
    assert Tags(tag("p", text(words), title=words)).names == ["p"]


@given(st.lists(st.tuples(st.text(max_size=40), st.floats(0, 1e6), st.floats(0, 1)), min_size=1, max_size=8))
def test_a_chart_holds_every_point_inside_its_frame(points: list[tuple[str, float, float]]) -> None:
    marks = [Mark(name, across, up, (across, across * 1.1), (up, up)) for name, across, up in points]
    drawn = scatter("Score against dollars", marks, across="dollars", up="score")
    assert Tags(drawn).names.count("circle") == len(marks)
    assert "nan" not in drawn.split("aria-label")[0]
    assert Tags(bars("Dollars", {name: across for name, across, _ in points}, unit="dollars")).names.count("rect") == len(
        {n for n, *_ in points}
    )


async def test_an_approval_tells_where_each_argument_comes_from(tmp_path: Path) -> None:
    @tool(effect="read")
    def bill() -> str:
        """Read the bill."""
        return "Pay to IBAN DE89370400440532013000."

    def act(request: StepRequest) -> Reply:
        if all(message.tool_result is None for message in request.messages):
            return [ToolCall(id="b", name="bill", arguments={})]
        return [ToolCall(id="c", name="wire", arguments={"amount": 417, "to": "DE89370400440532013000", "note": "invented"})]

    @tool(approval=True)
    def wire(amount: int, to: str, note: str) -> str:
        """Send money."""
        return f"sent {amount} to {to}: {note}"

    near = ScriptedAgent(act, name="near", confidence=0.9)
    async with opened(tmp_path, near, tools=(bill, wire)) as console, console.browser() as browser:
        await answered(browser, await ask(browser, "Pay 417 euros as the bill says."), "/console/approvals")
        page = (await browser.get("/console/approvals")).text
    for name, origin in (
        ("417", "the user&#x27;s words"),
        ("DE89370400440532013000", "a result of bill"),
        ("invented", "found in no text"),
    ):
        assert origin in page.partition(f"<code>{name}</code>")[2][:120]


async def test_the_step_that_failed_a_run_is_found_by_one_that_went_well(tmp_path: Path) -> None:
    @tool(effect="read")
    def look(place: str) -> str:
        """Look somewhere."""
        return {"left": "nothing", "right": "the key"}[place]

    places = iter(["left", "right"])

    def act(request: StepRequest) -> Reply:
        results = [message.tool_result.content for message in request.messages if message.tool_result is not None]
        return results[-1] if results else [ToolCall(id="c", name="look", arguments={"place": next(places)})]

    near = ScriptedAgent(act, name="near", confidence=0.9)
    async with opened(tmp_path, near, tools=(look,)) as console, console.browser() as browser:
        bad, good = [await console.hybrid.run("Find it.", strategy="device") for _ in range(2)]
        page = (await browser.get(f"/console/run?id={bad.id}")).text
        form = {**fields_of(page, "/console/run/blame"), "reference": good.id, "expected": ""}
        reply = await browser.post("/console/run/blame", data=form)
        assert "Step 1, near (near), failed this run." in reply.text
        form = {
            **fields_of((await browser.get(f"/console/run?id={good.id}")).text, "/console/run/blame"),
            "reference": bad.id,
            "expected": "the key",
        }
        assert "did not fail" in (await browser.post("/console/run/blame", data=form)).text


async def test_a_form_that_lacks_its_configuration_is_told_what_to_configure(tmp_path: Path) -> None:
    async with opened(tmp_path, ScriptedAgent([], name="near")) as console, console.browser() as browser:
        csrf = fields_of((await browser.get("/console/")).text, "/console/ask")["csrf"]
        reply = await browser.post("/console/policy/save", data={"csrf": csrf, "text": "[policy]\n", "version": "x"})
    assert 400 <= reply.status_code < 500
