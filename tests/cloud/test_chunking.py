"""How the network cuts a stream never changes what a step makes of it."""

from collections.abc import AsyncIterator, Iterable
from itertools import pairwise

import httpx
import pytest
from anyio import run
from hypothesis import given, settings
from hypothesis import strategies as st
from streams import DIALECTS, TEXTS, anthropic_call, gemini_call, openai_call, responses_call

from nearfar.cloud.dialect import Ending
from nearfar.cloud.streaming import StopCutter, SurrogateJoiner, json_events

ODD = "na\N{LATIN SMALL LETTER I WITH DIAERESIS}ve \N{GRINNING FACE}\u2028\u0085 \N{CJK UNIFIED IDEOGRAPH-6F22}"
STREAMS = [(name, write(ODD, "\\r\n", "end")) for name, write in TEXTS.items()] + [
    ("openai", openai_call('{"city": ', '"Orl\N{LATIN SMALL LETTER E WITH ACUTE}ans"}')),
    ("responses", responses_call('{"city": ', '"Orléans"}')),
    ("anthropic", anthropic_call('{"city": "', 'Orléans"}')),
    ("gemini", gemini_call()),
]


class Pieces(httpx.AsyncByteStream):
    """A body that arrives in given pieces."""

    def __init__(self, pieces: Iterable[bytes]) -> None:
        self._pieces = pieces

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for piece in self._pieces:
            yield piece


async def read(dialect: str, pieces: Iterable[bytes]) -> tuple[str, Ending]:
    response = httpx.Response(200, headers={"content-type": "text/event-stream"}, stream=Pieces(pieces))
    decoder = DIALECTS[dialect].decoder()
    text = "".join([decoder.feed(chunk) async for chunk in json_events(response)])
    return text, decoder.end()


async def assert_cuts_do_not_matter(dialect: str, body: bytes) -> None:
    whole = await read(dialect, [body])
    assert await read(dialect, [bytes([byte]) for byte in body]) == whole
    for position in range(len(body) + 1):
        assert await read(dialect, [body[:position], body[position:]]) == whole


@pytest.mark.anyio
@pytest.mark.parametrize(("dialect", "body"), STREAMS)
@pytest.mark.parametrize("newline", ["\n", "\r\n", "\r"], ids=["lf", "crlf", "cr"])
async def test_a_cut_at_any_byte_changes_nothing(dialect: str, body: str, newline: str) -> None:
    await assert_cuts_do_not_matter(dialect, body.replace("\n", newline).encode())


@settings(max_examples=50, deadline=None)
@given(st.sampled_from(STREAMS), st.lists(st.integers(min_value=0, max_value=3000), max_size=30))
def test_any_number_of_cuts_changes_nothing(stream: tuple[str, str], cuts: list[int]) -> None:
    dialect, body = stream[0], stream[1].encode()
    places = sorted({0, len(body), *(cut for cut in cuts if cut < len(body))})
    pieces = [body[start:end] for start, end in pairwise(places)]
    assert run(read, dialect, pieces) == run(read, dialect, [body])


@given(st.text(), st.lists(st.integers(min_value=0, max_value=40), max_size=10))
def test_text_cut_between_utf16_units_is_joined(text: str, cuts: list[int]) -> None:
    units = text.encode("utf-16-le")
    places = sorted({0, len(units), *(2 * cut for cut in cuts if 2 * cut < len(units))})
    joiner = SurrogateJoiner()
    pieces = [joiner.join(units[start:end].decode("utf-16-le", "surrogatepass")) for start, end in pairwise(places)]
    assert "".join(pieces) + joiner.rest() == text


@given(st.text("abc", max_size=12), st.lists(st.text("abc", min_size=1, max_size=4), max_size=3), st.lists(st.integers(0, 12), max_size=6))
def test_a_text_ends_at_the_same_stop_sequence_however_it_is_cut(text: str, stops: list[str], cuts: list[int]) -> None:
    places = [0, *sorted(cut for cut in cuts if cut < len(text)), len(text)]
    cutter = StopCutter(stops)
    shown = "".join(cutter.cut(text[begin:end]) for begin, end in pairwise(places)) + cutter.rest()
    ends = [(place + len(stop), place) for stop in stops if (place := text.find(stop)) >= 0]
    assert shown == (text[: min(ends)[1]] if ends else text)
    assert cutter.has_stopped is bool(ends)
