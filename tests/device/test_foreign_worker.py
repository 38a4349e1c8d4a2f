"""Whatever a worker process sends, its agent's process goes on, and nobody waits for it."""

import struct
from pathlib import Path

import anyio
import pytest

from nearfar.device.worker.process import WorkerProcess
from nearfar.device.worker.protocol import FrameDecoder, WorkerOptions, encode
from nearfar.protocols import Message, NearfarError, StepRequest, WorkerCrashed

pytestmark = pytest.mark.anyio

READY = encode({"ready": {"context_tokens": 10}})
OPTIONS = WorkerOptions(path="model.gguf", context_tokens=None, parallel=1, threads=None)


async def _started(frames: bytes, monkeypatch: pytest.MonkeyPatch) -> WorkerProcess:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent))
    monkeypatch.setenv("FOREIGN_FRAMES", frames.hex())
    return (await WorkerProcess.start("foreign_worker", OPTIONS))[0]


@pytest.mark.parametrize("frames", [
    b"\xff" * 100,
    struct.pack("<I", 3) + b"\xff\xfe\xfd",
    struct.pack("<I", 2) + b"[]",
    struct.pack("<I", 50_000) + b"[" * 50_000,
    encode({}),
    encode({"ready": 5}),
    encode({"failed": {"reason": 1}}),
    encode({"log": "no level"}),
    encode({"events": [[1, "no kind"]]}),
    encode({"answer": []}),
], ids=["long", "bytes", "list", "deep", "empty", "ready", "failed", "log", "events", "answer"])  # fmt: skip
async def test_a_process_that_sends_what_no_worker_sends_is_stopped(frames: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    with anyio.fail_after(60), pytest.raises(NearfarError):
        await _started(frames, monkeypatch)


@pytest.mark.parametrize("frames", [
    READY,
    encode({"events": [[1, "no kind", None]], "decoded_tokens": 1}),
    encode({"events": 7, "decoded_tokens": 1}),
], ids=["ready again", "no kind", "no list"])  # fmt: skip
async def test_steps_of_such_a_process_end(frames: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    with anyio.fail_after(60):
        worker = await _started(READY + frames, monkeypatch)
        with pytest.raises(WorkerCrashed, match="an invalid message"):
            await anext(worker.step(StepRequest(messages=(Message.user("Hi"),)), None))
        await worker.close()


def test_a_frame_that_is_too_long_is_not_waited_for() -> None:
    with pytest.raises(ValueError, match="too long"):
        list(FrameDecoder().feed(struct.pack("<I", 2**32 - 1)))
