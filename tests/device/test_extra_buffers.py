"""A build of llama.cpp that dies on its CPU with extra buffer types goes on without them; tried on an engine that really dies."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from llama_engine import require_llama

require_llama()
from near_model import QUESTION, ask, near_agent

from nearfar.device.gguf_file import TENSOR_TYPES, read_gguf
from nearfar.device.hardware.processors import read_cpu
from nearfar.device.llama import extra_buffers as module
from nearfar.device.llama.extra_buffers import FORMATS, extra_buffers, quantize
from nearfar.protocols import ModelError, complete

_ENGINE = Path(__file__).parent / "crashing_engine"
_SERVE = "from nearfar.device.llama.extra_buffers import prepare_library as p; p(); from llama_cpp import Llama; import sys; "
_EVALUATE = _SERVE + "m = Llama(sys.argv[1], n_ctx=128, n_threads=1, verbose=False); m.eval(list(range(3, 67)))"


@pytest.fixture
def passes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The file with a line for each first pass; the engine of all child processes is the one that can die."""
    found = tmp_path / "passes"
    found.touch()
    monkeypatch.setenv("PYTHONPATH", str(_ENGINE))
    monkeypatch.setenv("FIRST_PASSES", str(found))
    monkeypatch.setenv("CRASHING_ENGINE", "extra")
    monkeypatch.setenv("NEARFAR_HOME", str(tmp_path / "home"))
    extra_buffers.cache_clear()
    yield found
    extra_buffers.cache_clear()


def asked_again() -> module.ExtraBuffers:
    """As a new process would."""
    extra_buffers.cache_clear()
    return extra_buffers()


@pytest.mark.anyio
async def test_a_model_answers_on_an_engine_that_dies_with_extra_buffers_and_its_card_says_why(passes: Path) -> None:
    for _ in range(2):
        async with near_agent() as agent:
            reply = await complete(agent, ask(QUESTION * 8, max_output_tokens=8))
            assert reply.finished.usage.output_tokens
            assert agent.card.execution is not None
            assert "SIGSEGV" in agent.card.execution.extra_buffers_off
    assert passes.read_text().split() == ["on", "off"]


@pytest.mark.anyio
async def test_a_gpu_that_takes_long_batches_over_does_not_hide_a_crash_of_the_cpu(passes: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CRASHING_ENGINE", "beside_gpu")
    async with near_agent() as agent:
        reply = await complete(agent, ask(QUESTION * 8, max_output_tokens=8))
        assert reply.finished.usage.output_tokens
        assert agent.card.execution is not None
        assert "SIGSEGV" in agent.card.execution.extra_buffers_off
    assert passes.read_text().split() == ["on", "off"]


@pytest.mark.anyio
async def test_an_engine_that_works_keeps_its_extra_buffers(passes: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CRASHING_ENGINE", "")
    async with near_agent() as agent:
        assert agent.card.execution is not None
        assert agent.card.execution.extra_buffers_off == ""
    assert passes.read_text().split() == ["on"]


@pytest.mark.anyio
async def test_an_engine_that_always_dies_is_refused_with_what_to_do(passes: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CRASHING_ENGINE", "always")
    with pytest.raises(ModelError, match="died of SIGSEGV, also without") as caught:
        async with near_agent():
            pytest.fail("it opened")
    assert "--no-binary llama-cpp-python" in (caught.value.hint or "")


def test_a_first_pass_that_hangs_is_stopped_and_counts_as_a_crash(
    passes: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("CRASHING_ENGINE", "hang")
    monkeypatch.setattr(module, "_SECONDS", 6)
    monkeypatch.setattr(module, "_PATIENT_SECONDS", 1)
    found = asked_again()
    assert (found.usable, "did not end within 6 s" in found.reason) == (False, True)
    assert "hangs; it is stopped after 6 s" in caplog.text


@pytest.mark.parametrize("weights", ["Q8_0", "Q4_0", "Q4_1", "Q4_K", "Q5_K", "Q6_K", "IQ4_XS"])
def test_an_engine_that_dies_of_one_format_of_weights_is_found(passes: Path, monkeypatch: pytest.MonkeyPatch, weights: str) -> None:
    monkeypatch.setenv("CRASHING_ENGINE", weights)
    assert not asked_again().usable


@pytest.mark.parametrize("name", FORMATS)
def test_each_rewritten_model_has_a_matrix_in_its_format(name: str, tmp_path: Path) -> None:
    path = tmp_path / "rewritten.gguf"
    quantize(path, FORMATS[name])
    assert name.upper() in {TENSOR_TYPES[tensor.kind].name for tensor in read_gguf(path).tensors}


@pytest.mark.parametrize("damaged", [b'{"usable": tr', b"", b'{"works": true}', b'{"usable": "no idea"}', b"\xff\x00"])
def test_a_damaged_answer_is_found_anew(passes: Path, damaged: bytes) -> None:
    first = asked_again()
    (kept,) = (passes.parent / "home" / "engines").iterdir()
    kept.write_bytes(damaged)
    assert asked_again() == first
    assert json.loads(kept.read_bytes()) == {"usable": False, "reason": first.reason}
    assert passes.read_text().split() == ["on", "off"] * 2


def test_a_home_that_cannot_be_written_costs_a_first_pass_per_start(passes: Path) -> None:
    (passes.parent / "home").write_text("a file where the folder should be")
    assert [asked_again().usable, asked_again().usable] == [False, False]
    assert passes.read_text().split() == ["on", "off"] * 2


@pytest.mark.anyio
async def test_what_a_worker_logs_reaches_the_log_of_its_agents_process(passes: Path, caplog: pytest.LogCaptureFixture) -> None:
    (passes.parent / "home").write_text("a file where the folder should be")
    async with near_agent():
        (warning,) = [record for record in caplog.records if "cannot be written, so llama.cpp is tried again" in record.getMessage()]
    assert (warning.name, warning.levelname) == ("nearfar.device.llama.extra_buffers", "WARNING")


def test_a_full_disk_costs_a_warning_and_leaves_no_half_answer(passes: Path) -> None:
    code = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (16, 16)); "  # The lines of `passes` fit in.
    code += "from nearfar.device.llama.extra_buffers import extra_buffers; print(extra_buffers().usable)"
    ended = subprocess.run([sys.executable, "-B", "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert ended.stdout == "False\n"
    assert "cannot be written, so llama.cpp is tried again at the next start" in ended.stderr
    assert list((passes.parent / "home" / "engines").iterdir()) == []


def test_an_answer_does_not_stand_for_what_was_not_tried(passes: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked_again()
    later = passes.with_name("extra_buffers.py")
    later.write_bytes(module._PROGRAM.read_bytes() + b"# tries more\n")
    monkeypatch.setattr(module, "_PROGRAM", later)
    asked_again()
    assert passes.read_text().split() == ["on", "off"] * 2


def test_another_processor_is_tried_for_itself(passes: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked_again()
    other = read_cpu().model_copy(update={"model": "another processor"})
    monkeypatch.setattr(module, "read_cpu", lambda: other)
    asked_again()
    assert passes.read_text().split() == ["on", "off"] * 2


def test_a_pass_ended_from_outside_says_nothing_of_the_build(passes: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CRASHING_ENGINE", "killed")
    assert asked_again().usable
    assert not (passes.parent / "home" / "engines").exists()


def test_processes_that_start_together_leave_one_sound_answer(passes: Path) -> None:
    def start(_: int) -> str:
        code = "from nearfar.device.llama.extra_buffers import extra_buffers; print(extra_buffers().usable)"
        return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True).stdout

    with ThreadPoolExecutor(3) as pool:
        assert set(pool.map(start, range(3))) == {"False\n"}
    assert len(list((passes.parent / "home" / "engines").iterdir())) == 1


def test_the_librarys_own_model_goes_through_the_same_door(passes: Path) -> None:
    model = Path(module.__file__).parents[1] / "models" / "near.gguf"
    subprocess.run([sys.executable, "-c", _EVALUATE, str(model)], timeout=60, check=True)
    undone = _EVALUATE.replace("p(); ", "")
    died = subprocess.run([sys.executable, "-c", undone, str(model)], timeout=60, env={**os.environ})
    assert died.returncode < 0, "the engine of this test does not die"
