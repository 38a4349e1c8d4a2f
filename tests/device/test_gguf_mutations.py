"""A thousand damaged headers: each is refused with a typed error or loads, and whoever asked for it lives."""

import random
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

import pytest
from llama_engine import require_llama

require_llama()
pytest.importorskip("gguf", reason="looks where the header ends: pip install 'nearfar[test]'")
from gguf import GGUFReader
from near_model import NEAR, QUESTION, ask

from nearfar import LlamaAgent
from nearfar.device.gguf import read_header
from nearfar.device.hardware.processors import limited_memory
from nearfar.protocols import ModelError, NearfarError, complete
from nearfar.protocols.errors import BY_REASON

COUNT: Final = 1000
NUMBERS: Final = (0, 1, 4, 8, 9, 13, 255, 2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**63 - 1, 2**63, 2**64 - 1)
"""Those that counts, lengths, offsets and types go wrong with."""

pytestmark = pytest.mark.timeout(300)


class Mutations:
    """Damaged copies of a model, the same ones for the same seed."""

    def __init__(self, model: Path, seed: int) -> None:
        self._data = model.read_bytes()
        self._random = random.Random(seed)
        self._header = min(int(tensor.data_offset) for tensor in GGUFReader(model).tensors)
        self._vocabulary = self._data.index(b"tokenizer.ggml.tokens")
        self._tensors = self._data.index(b"token_embd.weight")

    def __iter__(self) -> Iterator[bytes]:
        kinds = (self._flipped, self._cut, self._overwritten, self._overwritten)
        for number in range(COUNT):
            yield bytes(kinds[number % len(kinds)]())

    def _flipped(self) -> bytearray:
        data = bytearray(self._data)
        for _ in range(self._random.randrange(1, 9)):
            data[self._place(1)] ^= 1 << self._random.randrange(8)
        return data

    def _cut(self) -> bytes:
        return self._data[: self._random.choice([self._place(1), self._random.randrange(len(self._data))])]

    def _overwritten(self) -> bytearray:
        """With another count, length, offset or type somewhere."""
        data, width = bytearray(self._data), self._random.choice([4, 8])
        number = self._random.choice([*NUMBERS, self._random.getrandbits(64)]) % (1 << 8 * width)
        at = self._place(width)
        data[at : at + width] = number.to_bytes(width, "little")
        return data

    def _place(self, width: int) -> int:
        """Mostly among keys and tensors, which are few bytes beside the vocabulary, and mean more."""
        parts = ((0, self._vocabulary), (self._tensors, self._header), (0, self._header))
        start, end = self._random.choices(parts, (4, 3, 3))[0]
        return self._random.randrange(start, end - width)


@pytest.fixture(scope="module")
def passing(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """The damaged models in which the check finds no fault; it raises `ModelError` for all others, and nothing else."""
    folder = tmp_path_factory.mktemp("mutations")
    found = []
    for number, data in enumerate(Mutations(NEAR, seed=9)):
        path = folder / f"{number}.gguf"
        path.write_bytes(data)
        try:
            read_header(path)
            found.append(path)
        except ModelError:
            path.unlink()
    return found


def test_most_damage_is_found_before_anything_is_loaded(passing: list[Path]) -> None:
    assert COUNT / 10 < len(passing) < COUNT / 3


def test_what_passes_the_check_loads_or_is_refused_and_ends_hardly_a_process(passing: list[Path]) -> None:
    left, outcomes, deaths = list(passing), [], 0
    while left:
        script = [sys.executable, str(Path(__file__).with_name("load_models.py"))]
        run = subprocess.run(script, input="\n".join(map(str, left)), capture_output=True, text=True, timeout=240, check=False)
        done = run.stdout.split()
        outcomes += done
        died = run.returncode != 0
        deaths += died
        left = left[len(done) + died :]
    assert set(outcomes) <= {"loaded", *BY_REASON}
    assert {"loaded", "ModelError"} <= set(outcomes)
    # Each of them is one that `read_header` could learn from.
    assert deaths <= COUNT // 500


@pytest.mark.anyio
async def test_damaged_models_are_typed_errors_or_answer_through_an_agent(passing: list[Path]) -> None:
    for path in passing[:: len(passing) // 8]:
        with suppress(NearfarError):
            async with await LlamaAgent.load(path, context_tokens=256, parallel=1) as agent:
                await complete(agent, ask(QUESTION, max_output_tokens=4))


def test_memory_beyond_the_limit_is_refused_and_the_limit_ends_with_the_block() -> None:
    with limited_memory(64 << 20):
        assert bytearray(1 << 20)
        with pytest.raises(MemoryError):
            bytearray(1 << 30)
    assert bytearray(1 << 30)
