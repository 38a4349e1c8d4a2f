"""A request that is larger than any honest one is refused before anything is made of it."""

from typing import Any

import pytest
from attached import PIXEL
from hypothesis import given
from hypothesis import strategies as st

from nearfar.protocols import InvalidRequest
from nearfar.protocols.limits import ATTACHMENTS, CALLS_OF_A_MESSAGE, JSON_DEPTH, MESSAGES, NAME_LENGTH, SCHEMA_LENGTH, TOOLS
from nearfar.protocols.v1 import agent_pb2 as pb
from nearfar.protocols.validation import parse_json
from nearfar.protocols.wire import request_from_proto

USER = pb.Message(role=pb.ROLE_USER, text="go")
OBJECT = '{"type":"object"}'


def read(**fields: object) -> None:
    message = pb.StepRequest(**{"messages": [USER], **fields})  # type: ignore[arg-type]  # fields of StepRequest
    request_from_proto(message, idempotency_key="key", timeout=None)


def calling(count: int = 1, *, identity: str = "") -> pb.Message:
    calls = [pb.ToolCall(id=f"{identity}{number}", name="tool", arguments_json="{}") for number in range(count)]
    return pb.Message(role=pb.ROLE_ASSISTANT, tool_calls=calls)


def showing(count: int = 1, *, media_type: str = "image/png", data: bytes = PIXEL.data, name: str = "") -> pb.Message:
    return pb.Message(role=pb.ROLE_USER, attachments=[pb.Attachment(media_type=media_type, data=data, name=name)] * count)


def tools(count: int, parameters: str = OBJECT) -> list[pb.ToolSpec]:
    return [pb.ToolSpec(name=f"tool{number}", parameters_json=parameters) for number in range(count)]


def nested(levels: int) -> str:
    return '{"type":"object","properties":{"x":' + "[" * (levels - 2) + "]" * (levels - 2) + "}}"


@pytest.mark.parametrize(("allowed", "refused"), [
    ({"messages": [USER] * MESSAGES}, {"messages": [USER] * (MESSAGES + 1)}),
    ({"tools": tools(TOOLS)}, {"tools": tools(TOOLS + 1)}),
    ({"messages": [calling(CALLS_OF_A_MESSAGE)]}, {"messages": [calling(CALLS_OF_A_MESSAGE + 1)]}),
    ({"messages": [calling(identity="x" * (NAME_LENGTH - 1))]}, {"messages": [calling(identity="x" * NAME_LENGTH)]}),
    ({"stop": ["x" * NAME_LENGTH]}, {"stop": ["x" * (NAME_LENGTH + 1)]}),
    ({"adapter": "x" * NAME_LENGTH}, {"adapter": "x" * (NAME_LENGTH + 1)}),
    ({"output_schema_json": OBJECT.ljust(SCHEMA_LENGTH)}, {"output_schema_json": OBJECT.ljust(SCHEMA_LENGTH + 1)}),
    ({"messages": [showing(ATTACHMENTS)]}, {"messages": [showing(ATTACHMENTS - 1), showing(2)]}),
    ({"messages": [showing(name="x" * 200)]}, {"messages": [showing(name="x" * 201)]}),
    ({"top_logprobs": 20}, {"top_logprobs": 21}),
    ({"tools": tools(1, nested(JSON_DEPTH))}, {"tools": tools(1, nested(JSON_DEPTH + 1))}),
], ids=["messages", "tools", "calls", "ids", "stops", "adapter", "schema", "attachments", "file names", "logprobs", "depth"])  # fmt: skip
def test_the_limit_itself_is_allowed_and_one_more_is_not(allowed: dict[str, object], refused: dict[str, object]) -> None:
    read(**allowed)
    with pytest.raises(InvalidRequest):
        read(**refused)


@pytest.mark.parametrize(
    "fields", [{"media_type": "image/jpeg"}, {"media_type": "text/html"}, {"media_type": ""}, {"data": b""}, {"data": b"GIF"}]
)
def test_what_is_no_image_of_its_format_is_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest):
        read(messages=[showing(**fields)])


@given(st.lists(st.sampled_from("[{"), min_size=1, max_size=200))
def test_depth_is_counted_over_lists_and_objects(opened: list[str]) -> None:
    closing = {"[": "]", "{": "}"}
    text = "".join('{"x":' if one == "{" else one for one in opened) + "1" + "".join(closing[one] for one in reversed(opened))
    if len(opened) <= JSON_DEPTH:
        parse_json(text)
    else:
        with pytest.raises(ValueError, match="levels deep"):
            parse_json(text)


def test_what_is_wide_is_not_deep() -> None:
    parse_json("[" + ",".join(["[{}]"] * 1000) + "]")
