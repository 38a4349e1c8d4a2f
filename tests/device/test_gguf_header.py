"""The GGUF header parser survives any bytes."""

import random
from contextlib import suppress
from pathlib import Path

import anyio
import pytest

pytest.importorskip("llguidance", reason="running models needs llama.cpp: pip install 'nearfar[llama]'")
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from near_model import NEAR, QUESTION, ask
from tiny_gguf import CHAT_TEMPLATE, TinyModel, write_tiny_gguf

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
        architecture="llama", name="tiny", description=None, context_tokens=77, chat_template=CHAT_TEMPLATE, world="toys"
    )


def test_shipped_model_names_its_world() -> None:
    assert read_header(NEAR).world == "search"


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
