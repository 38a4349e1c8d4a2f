"""Images and documents in a prompt: read in every known form, kept in their order, given to agents that read them, and never dropped."""

import json
from base64 import b64encode
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import pytest
from attached import PAGE, PIXEL, png

from nearfar import Hybrid, Records
from nearfar.orchestrator.agents import _hashes
from nearfar.orchestrator.budgets.account import most_prompt_tokens
from nearfar.orchestrator.cache.admission import exact_key, question_of
from nearfar.orchestrator.compression import compress
from nearfar.orchestrator.task import TaskScope, as_messages
from nearfar.orchestrator.task.modes import Strategy
from nearfar.orchestrator.task.stores import RunsConfig
from nearfar.orchestrator.tracing import open_traces
from nearfar.protocols import (
    Attachment,
    Capabilities,
    ContextOverflow,
    InvalidRequest,
    Message,
    ScriptedAgent,
    Sensitivity,
    Side,
    StepRequest,
    Unsupported,
    complete,
)

DATA, DOCUMENT = b64encode(PIXEL.data).decode(), b64encode(PAGE.data).decode()
SEES = Capabilities(images=True)
ASKED = Message.user("What is this?", (PIXEL,))


def read(*parts: object) -> Message:
    (message,) = as_messages([{"role": "user", "content": [*parts]}])
    return message


@pytest.mark.parametrize(
    "part",
    [
        {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{DATA}", "detail": "low"}},
        {"type": "image_url", "image_url": f"data:image/png;base64,{DATA}"},
        {"type": "input_image", "image_url": f"data:image/png;base64,{DATA}", "detail": "auto"},
        {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": DATA}},
        {"type": "image", "base64": DATA, "mime_type": "image/png"},
        {"type": "image", "source_type": "base64", "data": DATA, "mime_type": "image/png"},
        {"type": "media", "data": PIXEL.data, "mime_type": "image/png"},
        {"type": "image", "base64": DATA},
        {"type": "image", "base64": f"{DATA[:40]}\r\n{DATA[40:]}\n"},
        PIXEL,
    ],
)
def test_an_image_is_read_in_the_forms_of_all_known_apis(part: object) -> None:
    assert read({"type": "text", "text": "Look."}, part) == Message.user("Look.", (PIXEL,))


@pytest.mark.parametrize(
    "part",
    [
        {"type": "file", "file": {"filename": "bill.pdf", "file_data": f"data:application/pdf;base64,{DOCUMENT}"}},
        {"type": "input_file", "filename": "bill.pdf", "file_data": f"data:application/pdf;base64,{DOCUMENT}"},
        {"type": "document", "source": {"type": "base64", "media_type": "application/pdf", "data": DOCUMENT}, "title": "bill.pdf"},
        {"type": "file", "base64": DOCUMENT, "mime_type": "application/pdf", "filename": "bill.pdf"},
        {"type": "file", "file": {"filename": "bill.pdf", "file_data": DOCUMENT}},
    ],
)
def test_a_document_is_read_in_the_forms_of_all_known_apis(part: object) -> None:
    assert read(part).attachments == (PAGE,)


@pytest.mark.parametrize(
    "part",
    [
        {"type": "file", "file": {"filename": "a.txt", "file_data": f"data:text/plain;base64,{b64encode('Grüße'.encode()).decode()}"}},
        {"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": "Grüße"}, "title": "a.txt"},
        {"type": "text-plain", "text": "Grüße", "name": "a.txt"},
    ],
)
def test_a_file_of_plain_text_becomes_text_which_every_agent_reads(part: object) -> None:
    message = read({"type": "text", "text": "Read:"}, part)
    assert (message.text, message.attachments) == ("Read:\n\na.txt:\nGrüße\n\n", ())


def test_texts_and_images_keep_their_order() -> None:
    other = Attachment(media_type="image/png", data=png(2, 1))
    message = read("Before ", PIXEL, " between \ufffc", other)
    assert message.parts == ("Before ", PIXEL, " between ", other)
    assert as_messages([message.model_dump(mode="json")]) == (message,)
    assert message.with_text("No marks.").parts == ("No marks.", PIXEL, other)


@pytest.mark.parametrize(
    ("part", "error", "words"),
    [
        ({"type": "image_url", "image_url": {"url": "https://example.com/a.png"}}, Unsupported, r"content\[0\] is a link"),
        ({"type": "image", "source": {"type": "url", "url": "http://example.com/a.png"}}, Unsupported, "is a link"),
        ({"type": "input_image", "image_url": "data:image/svg+xml;base64,PHN2Zz4="}, Unsupported, "no agent reads 'image/svg"),
        (
            {"type": "input_image", "image_url": f"data:image/jpeg;base64,{DATA}"},
            InvalidRequest,
            r"content\[0\].*the data is not image/jpeg",
        ),
        ({"type": "image", "base64": "not base64!"}, InvalidRequest, "neither a data: URL nor base64"),
        ({"type": "input_file", "file_id": "file-123"}, InvalidRequest, "neither a data: URL nor base64"),
        ({"type": "input_audio", "input_audio": {"data": "", "format": "wav"}}, InvalidRequest, "is 'input_audio'"),
        ({"type": "text-plain", "mime_type": "text/plain"}, InvalidRequest, "holds no data"),
    ],
)
def test_what_no_agent_can_read_is_refused_with_its_place(part: object, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        read({"type": "text", "text": "Look."} if part is None else part)


def test_more_bytes_than_a_request_may_carry_are_refused() -> None:
    heavy = Attachment(media_type="image/png", data=PIXEL.data + b"\0" * (13 << 20))
    with pytest.raises(InvalidRequest, match="are the most"):
        as_messages([Message.user("Look.", (heavy, heavy))])
    with pytest.raises(InvalidRequest, match="at most"):
        Attachment.of(PIXEL.data + b"\0" * (17 << 20))


def test_a_file_is_attached_by_its_path(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(PIXEL.data)
    assert Attachment.read(tmp_path / "a.png") == PIXEL.model_copy(update={"name": "a.png"})
    (tmp_path / "a.bin").write_bytes(b"what?")
    with pytest.raises(Unsupported, match="a file of this format"):
        Attachment.read(tmp_path / "a.bin")


def jpeg(width: int, height: int) -> bytes:
    size = height.to_bytes(2, "big") + width.to_bytes(2, "big")
    return b"\xff\xd8\xff\xe0\x00\x06\xff\xc0\x00\x00\xff\xc0\x00\x11\x08" + size + b"\x03"


@pytest.mark.parametrize(
    ("data", "tokens"),
    [(png(1, 1), 1200), (png(1500, 1000), 2000), (png(4000, 1000), 5000), (jpeg(1500, 1000), 2000), (jpeg(1, 1)[:9], 5000)],
)
def test_tokens_of_an_image_are_bounded_by_its_size(data: bytes, tokens: int) -> None:
    assert Attachment.of(data).most_tokens == tokens


@pytest.mark.parametrize(
    ("body", "pages"),
    [(b"<< /Type /Page >> << /Type/Page\n>> << /Type /Pages /Count 2 >>", 2), (b"", 1), (bytes(20_000), 3), (b"/Type /Page " * 2000, 1000)],
)
def test_tokens_of_a_document_are_bounded_by_its_pages(body: bytes, pages: int) -> None:
    assert Attachment.of(b"%PDF-1.7\n" + body).most_tokens == 5000 * pages


def request(*messages: Message) -> StepRequest:
    return StepRequest(messages=messages, sensitivity=Sensitivity.PUBLIC)


def test_an_image_is_part_of_the_keys_of_caches() -> None:
    card, scope = ScriptedAgent([]).card, TaskScope()
    other = Message.user("What is this?", (Attachment(media_type="image/png", data=png(2, 1)),))
    keys = {exact_key(request(message), card, scope) for message in (ASKED, other, Message.user("What is this?"))}
    assert len(keys) == 3
    assert question_of(request(ASKED)) is None, "questions about different images may have the same words"
    assert list(_hashes([ASKED])) != list(_hashes([other]))


def test_budgets_count_an_image_by_its_tokens_and_not_by_its_bytes() -> None:
    large = Attachment(media_type="image/png", data=png(1, 1) + bytes(range(256)) * 4096)
    plain = most_prompt_tokens(request(Message.user("What is this?")))
    assert 1200 <= most_prompt_tokens(request(Message.user("What is this?", (large,)))) - plain < 1300


def test_compression_keeps_every_image_or_refuses() -> None:
    history = [ASKED, *(Message.assistant(f"Fact {number} is long and dull. " * 30) for number in range(40)), Message.user("And now?")]
    kept = compress(history, budget=2500).messages
    assert [message for message in kept if message.attachments] == [ASKED]
    with pytest.raises(ContextOverflow, match="attachments"):
        compress(history, budget=1000)


pytestmark = pytest.mark.anyio


async def test_an_image_goes_to_the_agent_that_reads_images() -> None:
    blind, seeing = ScriptedAgent(["?"], name="blind"), ScriptedAgent(["a pixel"], name="seeing", side=Side.FAR, capabilities=SEES)
    async with Hybrid(near=blind, far=seeing) as hybrid:
        result = await hybrid.run([ASKED], sensitivity="public", strategy="route")
    assert (result.text, blind.requests) == ("a pixel", [])
    assert seeing.requests[0].messages[-1].attachments == (PIXEL,)
    assert any("blind left out: it lacks images" in reason for reason in result.reasons)


async def test_a_prompt_of_an_image_alone_is_answered() -> None:
    async with Hybrid(near=ScriptedAgent(["a pixel"], capabilities=SEES)) as hybrid:
        assert (await hybrid.run([Message.user("", (PIXEL,))])).text == "a pixel"


async def test_an_image_that_no_agent_reads_is_refused() -> None:
    async with Hybrid(near=ScriptedAgent([])) as hybrid:
        with pytest.raises(Unsupported) as refused:
            await hybrid.run([ASKED])
        assert "lacks images" in refused.value.hint
        with pytest.raises(Unsupported) as refused:
            await hybrid.run([Message.user("Sum up.", (PAGE,))])
        assert "lacks files" in refused.value.hint
    with pytest.raises(Unsupported, match="cannot read images"):
        await complete(ScriptedAgent(["x"]), request(ASKED))


@pytest.mark.parametrize("strategy", [Strategy.PEVR, Strategy.EVA, Strategy.MINIONS, Strategy.SUBTASKS])
async def test_strategies_that_write_their_own_prompts_refuse_images(strategy: Strategy) -> None:
    near, far = (ScriptedAgent([], name=side, side=side, capabilities=SEES) for side in Side)
    async with Hybrid(near=near, far=far) as hybrid:
        with pytest.raises(Unsupported, match="works on text"):
            await hybrid.run([ASKED], sensitivity="public", strategy=strategy)
        assert not near.requests + far.requests


async def test_auto_chooses_a_strategy_that_shows_the_image() -> None:
    near, far = (ScriptedAgent(lambda _: "a pixel", name=side, side=side, capabilities=SEES, confidence=0.9) for side in Side)
    async with Hybrid(near=near, far=far) as hybrid:
        result = await hybrid.run([ASKED], sensitivity="public", strategy="auto", context="A long text. " * 500)
    assert result.text == "a pixel"
    assert any(request.messages[-1].attachments for request in near.requests + far.requests)


def texts(requests: Sequence[StepRequest]) -> list[str]:
    return [request.messages[-1].text for request in requests]


async def test_text_that_is_added_to_a_prompt_leaves_its_image_in_place() -> None:
    agent = ScriptedAgent(["a pixel"], capabilities=SEES)
    async with Hybrid(near=agent, instructions="Be brief.") as hybrid:
        await hybrid.run([ASKED], context="Seen through a lens.")
    (sent,) = agent.requests
    assert sent.messages[-1].attachments == (PIXEL,)
    assert texts(agent.requests)[0].startswith("What is this?")
    assert "Seen through a lens." in texts(agent.requests)[0]


async def test_a_session_keeps_the_image_for_the_next_question() -> None:
    agent = ScriptedAgent(["a pixel", "red"], capabilities=SEES)
    async with Hybrid(near=agent) as hybrid:
        chat = hybrid.session("ana")
        await chat.send([ASKED])
        assert (await chat.send("Which colour?")).text == "red"
    assert agent.requests[1].messages[0].attachments == (PIXEL,)


async def test_traces_keep_digest_type_and_size_alone(tmp_path: Path) -> None:
    with closing(open_traces(RunsConfig(folder=tmp_path))) as store:
        async with Hybrid(near=ScriptedAgent(["a pixel"], capabilities=SEES), records=Records(traces=store)) as hybrid:
            await hybrid.run([ASKED])
    raw = b"".join(path.read_bytes() for path in tmp_path.iterdir() if path.is_file())
    assert PIXEL.digest[:16].encode() in raw
    assert DATA.encode()[:40] not in raw
    assert PIXEL.data not in raw


def test_recorded_messages_name_their_attachments() -> None:
    shown = Message.user("A \ufffc and", (PIXEL, PAGE)).without_attachments
    assert shown.attachments == ()
    assert shown.text == f"A {PIXEL.shown} and{PAGE.shown}"
    assert json.loads(PIXEL.model_dump_json())["data"] == DATA
