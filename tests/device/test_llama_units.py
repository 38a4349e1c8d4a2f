"""The pure parts of the worker: frames, markers in text, prefix sharing, confidence."""

import math
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from llama_engine import needs_llama

from nearfar.device.worker.engine import Sequence, Sequences, common_prefix
from nearfar.device.worker.generation import TextFlow
from nearfar.device.worker.protocol import Frame, FrameDecoder, encode
from nearfar.device.worker.sampling import log_probability
from nearfar.protocols import ModelError
from nearfar.protocols.confidence import LowestWindow

if TYPE_CHECKING:
    from nearfar.device.llama.model import ThreadTuner

_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(), lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=8
)


@given(frames=st.lists(st.dictionaries(st.text(), _json), max_size=5), cuts=st.lists(st.integers(1, 40), min_size=1))
def test_frames_survive_any_cutting_of_the_stream(frames: list[Frame], cuts: list[int]) -> None:
    data = b"".join(encode(frame) for frame in frames)
    received: list[Frame] = []
    decoder, at, turn = FrameDecoder(), 0, 0
    while at < len(data):
        size = cuts[turn % len(cuts)]
        received += decoder.feed(data[at : at + size])
        at, turn = at + size, turn + 1
    assert received == frames


def _pieces(text: str, sizes: list[int]) -> list[bytes]:
    data, pieces, at = text.encode(), [], 0
    for turn in range(len(data)):
        if at >= len(data):
            break
        size = sizes[turn % len(sizes)]
        pieces.append(data[at : at + size])
        at += size
    return pieces


@given(text=st.text(), sizes=st.lists(st.integers(1, 5), min_size=1))
def test_text_flow_without_markers_is_the_identity(text: str, sizes: list[int]) -> None:
    flow = TextFlow(())
    assert "".join(flow.feed(piece).text for piece in _pieces(text, sizes)) + flow.rest() == text


@given(
    text=st.text(alphabet="ab<é🙂"),
    markers=st.lists(st.text(alphabet="ab<é🙂", min_size=1, max_size=4), min_size=1, max_size=3),
    sizes=st.lists(st.integers(1, 5), min_size=1),
)
def test_text_flow_shows_all_before_the_first_marker_and_nothing_of_it(text: str, markers: list[str], sizes: list[int]) -> None:
    flow, shown = TextFlow(markers), ""
    fed = 0
    for piece in _pieces(text, sizes):
        fed += len(piece)
        result = flow.feed(piece)
        shown += result.text
        if result.marker is not None:
            # Bytes behind the marker were generated with the same token, and only those.
            assert text.encode()[: fed - result.surplus].endswith(result.marker.encode())
            break
    else:
        shown += flow.rest()
    found = [text.find(marker) for marker in markers if marker in text]
    # A shorter marker may be complete before a longer one that begins earlier is.
    assert shown == text if not found else text.startswith(shown)
    assert not any(marker in shown for marker in markers)


@given(first=st.lists(st.integers(0, 2)), second=st.lists(st.integers(0, 2)))
def test_common_prefix_is_the_longest(first: list[int], second: list[int]) -> None:
    length = common_prefix(first, second)
    assert first[:length] == second[:length]
    assert len(first) == length or len(second) == length or first[length] != second[length]


class _Cells:
    """A cache that knows which token lies where, and refuses to hold more than it can."""

    def __init__(self, *, shares: bool) -> None:
        self.content: dict[int, list[int]] = {}
        self._shares = shares

    def forget(self, sequence: int, start: int) -> bool:
        self.content[sequence] = self.content.get(sequence, [])[:start]
        return True

    def share(self, source: int, target: int, end: int) -> bool:
        assert not self.content.get(target), "llama.cpp would mix the two"
        if self._shares:
            self.content[target] = self.content[source][:end]
        return self._shares


_prompt = st.lists(st.integers(0, 1), min_size=1, max_size=12)


@given(steps=st.lists(st.tuples(_prompt, st.integers(1, 12), st.booleans()), max_size=30), shares=st.booleans())
def test_sequences_never_hold_more_than_the_cache_and_know_what_they_hold(steps: list[tuple[list[int], int, bool]], shares: bool) -> None:
    busy: list[Sequence] = []
    cells, memory = 40, _Cells(shares=shares)
    sequences = Sequences(memory, count=3, cells=cells)
    for prompt, output, release in steps:
        reserve = len(prompt) + output
        sequence = sequences.claim(prompt, reserve=reserve)
        if sequence is None:
            assert len(busy) == 3 or sum(held.reserved for held in busy) + reserve > cells
        else:
            cached = len(sequence.cells)
            assert sequence.cells == prompt[:cached] == memory.content.get(sequence.identifier, [])
            assert cached < len(prompt)
            sequence.cells += prompt[cached:]
            memory.content.setdefault(sequence.identifier, []).extend(prompt[cached:])
            busy.append(sequence)
        held = {sequence.identifier: sequence.reserved for sequence in busy}
        assert sum(held.get(identifier, len(content)) for identifier, content in memory.content.items()) <= cells
        if release and busy:
            sequences.release(busy.pop(0))


@given(values=st.lists(st.floats(-20, 0), min_size=1, max_size=30))
def test_confidence_is_the_lowest_mean_of_four(values: list[float]) -> None:
    confidence = LowestWindow()
    for value in values:
        confidence.add(value)
    windows = [values[at : at + 4] for at in range(max(len(values) - 3, 1))]
    expected = min(math.exp(sum(window) / len(window)) for window in windows)
    assert confidence.value is not None
    assert math.isclose(confidence.value, expected, rel_tol=1e-9)


@pytest.mark.parametrize("wrong", [math.nan, math.inf])
def test_logits_that_are_no_numbers_are_the_models_fault(wrong: float) -> None:
    with pytest.raises(ModelError, match="not numbers"):
        log_probability(np.array([0.0, wrong, 1.0], dtype=np.float32), 1)


def test_confidence_is_unknown_before_the_first_token() -> None:
    assert LowestWindow().value is None


def _tuner() -> "ThreadTuner":
    from nearfar.device.llama.model import ThreadTuner

    return ThreadTuner(few=1, many=8)


def _passes(tuner: "ThreadTuner", seconds: dict[int, float], count: int) -> list[int]:
    """Run passes of four tokens that take `seconds` by the number of threads; returns the numbers used."""
    used = []
    for _ in range(count):
        used.append(tuner.threads(4))
        tuner.report(4, seconds[used[-1]])
    return used


@needs_llama
def test_idle_cores_are_used_for_batches() -> None:
    assert set(_passes(_tuner(), {1: 1.0, 8: 0.3}, 40)[10:]) == {8}


@needs_llama
def test_busy_cores_are_tried_ever_more_rarely() -> None:
    used = _passes(_tuner(), {1: 1.0, 8: 5.0}, 2000)
    assert used.count(8) < 8


@needs_llama
def test_threads_follow_the_machine() -> None:
    tuner = _tuner()
    _passes(tuner, {1: 1.0, 8: 0.3}, 40)
    assert set(_passes(tuner, {1: 1.0, 8: 5.0}, 300)[-50:]) == {1}
    assert set(_passes(tuner, {1: 1.0, 8: 0.3}, 2000)[-50:]) == {8}


@needs_llama
def test_passes_of_another_size_begin_with_the_threads_that_won_before() -> None:
    tuner = _tuner()
    _passes(tuner, {1: 1.0, 8: 0.3}, 40)
    assert tuner.threads(128) == 8
    assert _tuner().threads(128) == 1
