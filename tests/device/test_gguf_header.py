"""The GGUF header parser survives any bytes."""

import random
import struct
from contextlib import suppress
from pathlib import Path

import anyio
import numpy as np
import pytest

pytest.importorskip("llguidance", reason="running models needs llama.cpp: pip install 'nearfar[llama]'")
from gguf import GGUFReader, GGUFWriter
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from near_model import NEAR, QUESTION, ask
from tiny_gguf import CHAT_TEMPLATE, WIDTH, TinyModel, write_tiny_gguf

from nearfar.device import LlamaAgent
from nearfar.device.llama import GgufHeader, read_header
from nearfar.protocols import ModelError, NearfarError, complete

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


def _header_only(path: Path, shape: dict[str, int | list[int]], *, parts: int = 1) -> Path:
    """A model of 4 layers with 8 heads of width 32, without its tokenizer."""
    writer = GGUFWriter(str(path), "llama")
    writer.add_block_count(4)
    writer.add_embedding_length(256)
    writer.add_head_count(8)
    for key, value in shape.items():
        if isinstance(value, list):
            writer.add_array(f"llama.{key}", value)
        else:
            writer.add_uint32(f"llama.{key}", value)
    writer.add_uint16("split.count", parts)
    writer.add_tensor("token_embd.weight", np.zeros((4, 256), dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def test_shipped_model_names_its_world() -> None:
    assert read_header(NEAR).world == "search, apps"


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


@pytest.mark.anyio
async def test_mutated_model_is_loaded_or_refused_and_the_caller_lives(tiny: bytes, target: Path) -> None:
    random_ = random.Random(7)
    for _ in range(12):
        mutated = bytearray(tiny)
        for _ in range(random_.randrange(1, 5)):
            mutated[random_.randrange(24, _HEADER_BYTES)] = random_.randrange(256)
        await anyio.Path(target).write_bytes(mutated)
        with anyio.fail_after(60):
            with suppress(NearfarError):
                async with await LlamaAgent.load(target) as agent:
                    await complete(agent, ask(QUESTION, max_output_tokens=4))
