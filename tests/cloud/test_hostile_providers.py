"""Whatever a provider streams, a step ends with its events or with a typed error, and never with a defect of ours."""

import json
from contextlib import suppress

import anyio
import pytest
from http_server import Exchange, http_server
from hypothesis import given, settings
from hypothesis import strategies as st
from streams import DIALECTS, TEXTS, WEATHER, agent_at, anthropic_call, asking, gemini_call, openai_call, responses_call

from nearfar.protocols import InternalError, NearfarError, complete

pytestmark = pytest.mark.anyio

HONEST = {
    "openai": [TEXTS["openai"]("hi"), openai_call('{"city": "Paris"}')],
    "responses": [TEXTS["responses"]("hi"), responses_call('{"city": "Paris"}')],
    "anthropic": [TEXTS["anthropic"]("hi"), anthropic_call('{"city": "Paris"}')],
    "gemini": [TEXTS["gemini"]("hi"), gemini_call()],
}
VALUES = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.sampled_from([0, -1, 2**63, 10**400, 1.5, 1e308]),
        st.text(max_size=5),
        st.sampled_from(["\ud800", "x" * 10_000, "tool_use", "stop"]),
    ),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["index", "id", "text", "name", "type", "x"]), inner, max_size=3)
    ),
    max_leaves=6,
)


@st.composite
def streams(draw: st.DrawFn, dialect: str) -> bytes:
    """An honest stream in which some values are others, and perhaps some bytes."""
    lines = draw(st.sampled_from(HONEST[dialect])).splitlines()
    for _ in range(draw(st.integers(1, 3))):
        place = draw(st.integers(0, len(lines) - 1))
        with suppress(ValueError):
            document = json.loads(lines[place].removeprefix("data: "))
            lines[place] = "data: " + json.dumps(_changed(draw, document))
    body = ("\n".join(lines) + "\n\n").encode()
    if draw(st.booleans()):
        return body
    cut = draw(st.integers(0, len(body)))
    return body[:cut] + draw(st.binary(max_size=20)) + body[cut:]


def _changed(draw: st.DrawFn, value: object) -> object:
    """`value` with one part replaced."""
    if isinstance(value, dict) and value and draw(st.booleans()):
        name = draw(st.sampled_from(sorted(value)))
        return {**value, name: _changed(draw, value[name])}
    if isinstance(value, list) and value and draw(st.booleans()):
        return [_changed(draw, value[0]), *value[1:]]
    return draw(VALUES)


@settings(max_examples=60)
@given(st.sampled_from(sorted(DIALECTS)).flatmap(lambda dialect: st.tuples(st.just(dialect), streams(dialect))))
async def test_no_stream_is_more_than_an_error(streamed: tuple[str, bytes]) -> None:
    dialect, body = streamed

    async def answer(exchange: Exchange) -> None:
        await exchange.stream([body])

    async with http_server(answer) as server:
        agent = agent_at(server.base_url, dialect)
        try:
            with anyio.fail_after(20):
                await complete(agent, asking(tools=(WEATHER,)))
        except NearfarError as error:
            assert not isinstance(error, InternalError)  # noqa: PT017 - most streams raise none
        finally:
            await agent.aclose()
