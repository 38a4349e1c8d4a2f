"""The GGUF header parser survives any bytes."""

import os
import struct
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("llguidance", reason="running models needs llama.cpp: pip install 'nearfar[llama]'")
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, GGUFReader, GGUFWriter
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from near_model import NEAR
from tiny_gguf import CHAT_TEMPLATE, WIDTH, TinyModel, write_tiny_gguf

from nearfar.device.gguf import GgufHeader, check_part, read_header
from nearfar.device.gguf_file import TENSOR_TYPES
from nearfar.protocols import ModelError

Extra = Callable[[GGUFWriter], None]
_HEADER_BYTES = 9000
"""About the length of the tiny model's header, so that mutations mostly hit it."""


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    return write_tiny_gguf(tmp_path_factory.mktemp("gguf") / "tiny.gguf", TinyModel(layers=1, world="toys")).read_bytes()


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("gguf") / "mutated.gguf"


def test_header_tells_what_the_writer_wrote(tmp_path: Path) -> None:
    path = write_tiny_gguf(tmp_path / "tiny.gguf", TinyModel(context_length=77, world="toys"))
    assert read_header(path) == GgufHeader(
        architecture="llama",
        name="tiny",
        description=None,
        context_tokens=77,
        chat_template=CHAT_TEMPLATE,
        world="toys",
        parameters=sum(int(tensor.n_elements) for tensor in GGUFReader(path).tensors),
        layers=2,
        kv_elements_per_token=2 * 2 * WIDTH,
    )


def test_what_is_no_file_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.gguf")
    for path in (tmp_path / "pipe.gguf", Path(os.devnull)):
        with pytest.raises(ModelError, match="is a device or a pipe, not a file"):
            read_header(path)


def test_keys_and_values_may_have_lengths_of_their_own(tmp_path: Path) -> None:
    path = _header_only(tmp_path / "shape.gguf", {"attention.head_count_kv": 3, "attention.key_length": 16, "attention.value_length": 8})
    assert read_header(path).kv_elements_per_token == 4 * 3 * (16 + 8)


@pytest.mark.parametrize("heads", [[1, 2, 1, 2], 0], ids=["differ by layer", "none"])
def test_a_cache_that_the_formula_does_not_fit_is_unknown(tmp_path: Path, heads: list[int] | int) -> None:
    assert read_header(_header_only(tmp_path / "shape.gguf", {"attention.head_count_kv": heads})).kv_elements_per_token is None


def test_one_part_of_a_split_model_does_not_pass_for_the_whole(tmp_path: Path) -> None:
    assert read_header(_header_only(tmp_path / "split.gguf", {}, parts=2)).parameters is None


def test_more_weights_than_the_file_can_hold_are_refused(tmp_path: Path) -> None:
    path = write_tiny_gguf(tmp_path / "tiny.gguf", TinyModel(layers=1))
    claimed = path.read_bytes().replace(struct.pack("<QQ", WIDTH, WIDTH), struct.pack("<QQ", WIDTH, 2**40), 1)
    path.write_bytes(claimed)
    with pytest.raises(ModelError, match="weights"):
        read_header(path)


def test_shipped_model_names_its_world() -> None:
    assert read_header(NEAR).world == "search, apps"


def _edited(path: Path, old: bytes, new: bytes) -> Path:
    """A small model with the first `old` in its header replaced by `new`, which is as long."""
    data = write_tiny_gguf(path, TinyModel(layers=1)).read_bytes()
    assert old in data, "the header has changed: choose other bytes"
    assert len(old) == len(new)
    path.write_bytes(data.replace(old, new, 1))
    return path


def _square(*fields: int) -> bytes:
    """A tensor's two dimensions and its type."""
    return struct.pack("<QQI", *fields)


SQUARE = _square(WIDTH, WIDTH, 0)


def test_table_of_tensor_types_is_that_of_ggml() -> None:
    assert {number: tuple(known) for number, known in TENSOR_TYPES.items()} == {
        int(kind): (kind.name, *GGML_QUANT_SIZES[kind]) for kind in GGMLQuantizationType
    }


@pytest.mark.parametrize(
    ("old", "new", "fault"),
    [
        pytest.param(SQUARE, _square(WIDTH, WIDTH, 5), "unknown type", id="unknown type"),
        pytest.param(SQUARE, _square(WIDTH, WIDTH, 12), "rows of 64", id="rows shorter than a block"),
        pytest.param(SQUARE, _square(2**63, WIDTH, 0), "weights", id="more than 63 bits"),
        pytest.param(SQUARE, _square(2**32, 2**32, 0), "weights", id="product overflows"),
        pytest.param(SQUARE, _square(WIDTH, 2**20, 0), "overlaps|after the end", id="larger than the file"),
        pytest.param(b"blk.0.attn_k", b"blk.0.attn_q", "two tensors", id="a name twice"),
        pytest.param(b"llama.block_count", b"llama.block_xxxxx", "block_count", id="layers not stated"),
        pytest.param(b"general.architecture", b"general.architectura", "architecture", id="architecture not named"),
        pytest.param(b"tokenizer.ggml.tokens", b"tokenizer.ggml.tokenz", "no vocabulary", id="tokens missing"),
    ],
)
def test_what_llama_cpp_would_stumble_over_is_refused(tmp_path: Path, old: bytes, new: bytes, fault: str) -> None:
    with pytest.raises(ModelError, match=fault):
        read_header(_edited(tmp_path / "tiny.gguf", old, new))


@pytest.mark.parametrize(
    ("extra", "fault"),
    [
        pytest.param(lambda writer: writer.add_uint64("general.alignment", 32), "alignment", id="alignment of another type"),
        pytest.param(lambda writer: writer.add_uint32("general.alignment", 48), "alignment", id="alignment no power of two"),
        pytest.param(lambda writer: writer.add_array("tokenizer.ggml.tokens", [1, 2]), "list of texts", id="tokens are numbers"),
        pytest.param(lambda writer: writer.add_array("tokenizer.ggml.tokens", ["a", "b", "a\0b"]), "1 of its 3", id="a token twice"),
        pytest.param(lambda writer: writer.add_uint32("llama.block_count", 513), "513 layers", id="more layers than llama.cpp has"),
        pytest.param(lambda writer: _vocabulary(writer, scores=[0.5]), "scores", id="a score too few"),
        pytest.param(lambda writer: _vocabulary(writer, scores=[1, 2]), "scores", id="scores are whole numbers"),
        pytest.param(lambda writer: _vocabulary(writer, token_type=[1]), "token_type", id="a type too few"),
        pytest.param(lambda writer: _vocabulary(writer, merges=[1]), "merges", id="merges are numbers"),
    ],
)
def test_keys_that_llama_cpp_reads_blindly_have_the_types_it_expects(tmp_path: Path, extra: Extra, fault: str) -> None:
    with pytest.raises(ModelError, match=fault):
        read_header(_header_only(tmp_path / "keys.gguf", {}, extra=extra))


@pytest.mark.timeout(20)
@pytest.mark.parametrize("arrays", [1, 40])
def test_texts_without_end_are_not_walked_through(target: Path, arrays: int) -> None:
    """A hole in a file costs nothing, and each 8 of its bytes are an empty text."""
    texts = (1 << 27) // arrays
    with target.open("wb") as file:
        file.write(b"GGUF" + struct.pack("<IQQ", 3, 0, arrays))
        for number in range(arrays):
            file.write(struct.pack("<Q1sIIQ", 1, bytes([65 + number]), 9, 8, texts))
            file.seek(8 * texts, os.SEEK_CUR)
        file.truncate()
    with pytest.raises(ModelError, match="it claims an array of"):
        read_header(target)


def test_tokens_without_text_are_told_apart_by_their_numbers(tmp_path: Path) -> None:
    read_header(_header_only(tmp_path / "keys.gguf", {}, extra=lambda writer: writer.add_array("tokenizer.ggml.tokens", ["", "", "a"])))


def test_a_further_part_needs_no_description_of_the_model_but_is_complete(tmp_path: Path) -> None:
    writer = GGUFWriter(str(tmp_path / "part.gguf"), "llama")
    writer.kv_data[0].clear()
    writer.add_uint16("split.no", 1)
    writer.add_tensor("token_embd.weight", np.zeros((4, 256), dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    part = tmp_path / "part.gguf"
    check_part(part)
    with pytest.raises(ModelError, match="architecture"):
        read_header(part)
    part.write_bytes(part.read_bytes()[:-64])
    with pytest.raises(ModelError, match="after the end of the file"):
        check_part(part)


def _vocabulary(writer: GGUFWriter, **arrays: Sequence[float]) -> None:
    writer.add_array("tokenizer.ggml.tokens", ["a", "b"])
    for name, values in arrays.items():
        writer.add_array(f"tokenizer.ggml.{name}", values)


def _header_only(path: Path, shape: dict[str, int | list[int]], *, parts: int = 1, extra: Extra | None = None) -> Path:
    """A model of 4 layers with 8 heads of width 32, without its tokenizer; `extra` writes more."""
    writer = GGUFWriter(str(path), "llama")
    writer.add_block_count(4)
    writer.add_context_length(512)
    writer.add_embedding_length(256)
    writer.add_head_count(8)
    for key, value in shape.items():
        if isinstance(value, list):
            writer.add_array(f"llama.{key}", value)
        else:
            writer.add_uint32(f"llama.{key}", value)
    writer.add_uint16("split.count", parts)
    if extra is not None:
        extra(writer)
    writer.add_tensor("token_embd.weight", np.zeros((4, 256), dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    edits=st.lists(st.tuples(st.integers(0, _HEADER_BYTES), st.integers(0, 255)), min_size=1, max_size=8),
    length=st.none() | st.integers(0, _HEADER_BYTES),
)
def test_mutated_header_is_read_or_refused(tiny: bytes, target: Path, edits: list[tuple[int, int]], length: int | None) -> None:
    mutated = bytearray(tiny)
    for at, value in edits:
        mutated[at] = value
    target.write_bytes(mutated[:length])
    with suppress(ModelError):
        assert isinstance(read_header(target), GgufHeader)


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(at=st.integers(4, _HEADER_BYTES), number=st.integers(0, 2**64 - 1))
def test_absurd_count_is_read_or_refused(tiny: bytes, target: Path, at: int, number: int) -> None:
    mutated = bytearray(tiny)
    mutated[at : at + 8] = number.to_bytes(8, "little")
    target.write_bytes(mutated)
    with suppress(ModelError):
        assert isinstance(read_header(target), GgufHeader)


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.binary(max_size=400), magic=st.booleans())
def test_noise_is_refused(target: Path, data: bytes, magic: bool) -> None:
    target.write_bytes(b"GGUF\x03\x00\x00\x00" + data if magic else data)
    with pytest.raises(ModelError):
        read_header(target)
