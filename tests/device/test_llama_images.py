"""A model with a multimodal projector reads images as llama.cpp's own evaluation of the same prompt does."""

import ctypes
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import anyio
import numpy as np
import pytest
from attached import PAGE, png
from llama_engine import require_llama

require_llama()
import llama_cpp
from llama_cpp import mtmd_cpp
from tiny_gguf import TinyModel, write_tiny_gguf
from tiny_projector import IMAGE_CELLS, write_tiny_projector

from nearfar import LlamaAgent
from nearfar.protocols import (
    Attachment,
    InvalidRequest,
    Message,
    ModelError,
    ModelNotFound,
    StepReply,
    StepRequest,
    Unsupported,
    complete,
)
from nearfar.protocols.testing import Subject
from nearfar.protocols.testing.agent_conformance import images_are_read_or_refused, run_check

pytestmark = pytest.mark.anyio

RED, WIDE = (Attachment(media_type="image/png", data=png(width, 8)) for width in (8, 40))


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("models")
    model = TinyModel(context_length=256, end_bias=0.0)
    return write_tiny_gguf(folder / "model.gguf", model), write_tiny_projector(folder / "mmproj.gguf")


@asynccontextmanager
async def seeing(files: tuple[Path, Path], *, context_tokens: int | None = None) -> AsyncIterator[LlamaAgent]:
    model, projector = files
    async with await LlamaAgent.load(model, projector=projector, context_tokens=context_tokens) as agent:
        yield agent


def ask(text: str, *images: Attachment, **fields: object) -> StepRequest:
    return StepRequest.model_validate({"messages": (Message.user(text, images),), "max_output_tokens": 12, **fields})


def lowest(reply: StepReply) -> float:
    return min(token.logprob for token in reply.finished.logprobs)


class Reference:
    """Greedy text by llama.cpp's own evaluation of text and images, without nearfar's worker."""

    def __init__(self, model: Path, projector: Path) -> None:
        llama_cpp.llama_backend_init()
        loaded = llama_cpp.llama_model_load_from_file(str(model).encode(), llama_cpp.llama_model_default_params())
        parameters = mtmd_cpp.mtmd_context_params_default()
        parameters.use_gpu = parameters.warmup = False
        self.projector = mtmd_cpp.mtmd_init_from_file(str(projector).encode(), loaded, parameters)
        options = llama_cpp.llama_context_default_params()
        options.n_ctx, options.n_batch, options.n_ubatch = 256, 256, 256
        self.context = llama_cpp.llama_init_from_model(loaded, options)
        self.vocabulary = llama_cpp.llama_model_get_vocab(loaded)

    def logprobs(self, prompt: str, images: list[Attachment], count: int) -> list[float]:
        """Return the log-probabilities of the greedy continuation of a prompt that has a marker for each image."""
        llama_cpp.llama_memory_clear(llama_cpp.llama_get_memory(self.context), True)
        marker = mtmd_cpp.mtmd_default_marker()
        written = prompt.encode().replace(b"{}", marker)
        buffers = [(ctypes.c_uint8 * len(image.data)).from_buffer_copy(image.data) for image in images]
        bitmaps = [mtmd_cpp.mtmd_helper_bitmap_init_from_buf(self.projector, data, len(data), False) for data in buffers]
        chunks = mtmd_cpp.mtmd_input_chunks_init()
        text = mtmd_cpp.mtmd_input_text(written, len(written), True, True)
        array = (ctypes.c_void_p * len(bitmaps))(*bitmaps)
        assert mtmd_cpp.mtmd_tokenize(self.projector, chunks, ctypes.byref(text), array, len(bitmaps)) == 0
        end = llama_cpp.llama_pos(0)
        assert mtmd_cpp.mtmd_helper_eval_chunks(self.projector, self.context, chunks, 0, 0, 256, True, ctypes.byref(end)) == 0
        found = []
        for position in range(end.value, end.value + count):
            logits = np.ctypeslib.as_array(
                llama_cpp.llama_get_logits_ith(self.context, -1), (llama_cpp.llama_vocab_n_tokens(self.vocabulary),)
            )
            token = int(logits.argmax())
            found.append(float(logits[token] - np.log(np.exp(logits.astype(np.float64)).sum())))
            batch = llama_cpp.llama_batch_get_one((llama_cpp.llama_token * 1)(token), 1)
            assert llama_cpp.llama_decode(self.context, batch) == 0, position
        return found


@pytest.mark.parametrize("rows_and_columns", [False, True], ids=["LLaVA's form", "Qwen2-VL's form"])
async def test_log_probabilities_equal_those_of_llama_cpp_itself(rows_and_columns: bool, tmp_path: Path) -> None:
    model = TinyModel(context_length=256, end_bias=0.0, architecture="qwen2vl" if rows_and_columns else "llama")
    files = (
        write_tiny_gguf(tmp_path / "model.gguf", model),
        write_tiny_projector(tmp_path / "mmproj.gguf", rows_and_columns=rows_and_columns),
    )
    async with seeing(files) as agent:
        reply = await complete(agent, ask("What \ufffc is \ufffc?", RED, WIDE, top_logprobs=0))
    reference = Reference(*files)
    expected = reference.logprobs("<|user|>What {} is {}?<|end|><|assistant|>", [RED, WIDE], 12)
    found = [token.logprob for token in reply.finished.logprobs]
    assert len(found) == 12
    assert found == pytest.approx(expected, abs=2e-3)
    without = reference.logprobs("<|user|>What  is ?<|end|><|assistant|>", [], 12)
    assert found != pytest.approx(without, abs=2e-3)


async def test_an_image_takes_cells_and_is_found_in_the_cache_again(files: tuple[Path, Path]) -> None:
    async with seeing(files) as agent:
        first = await complete(agent, ask("\ufffc What is this?", RED, top_logprobs=0))
        again = await complete(agent, ask("\ufffc What is this?", RED, top_logprobs=0))
        other = await complete(agent, ask("\ufffc What is this?", WIDE, top_logprobs=0))
        plain = await complete(agent, ask(" What is this?", top_logprobs=0))
    assert first.finished.usage.input_tokens == plain.finished.usage.input_tokens + IMAGE_CELLS
    assert again.finished.usage.cached_tokens == first.finished.usage.input_tokens - 1
    assert again.text == first.text
    assert lowest(again) == pytest.approx(lowest(first), abs=1e-3)
    assert other.finished.usage.cached_tokens < IMAGE_CELLS, "another image is not taken for the first one"
    assert lowest(other) != pytest.approx(lowest(first), abs=1e-3)


async def test_steps_with_and_without_images_run_together(files: tuple[Path, Path]) -> None:
    requests = [ask(f"{number} \ufffc", RED if number % 2 else WIDE) if number % 3 else ask(f"{number} plain") for number in range(9)]
    async with seeing(files) as agent:
        alone = [await complete(agent, request) for request in requests]
    replies: dict[int, StepReply] = {}

    async def run(agent: LlamaAgent, number: int) -> None:
        replies[number] = await complete(agent, requests[number])

    async with seeing(files) as agent, anyio.create_task_group() as tasks:
        for number in range(9):
            tasks.start_soon(run, agent, number)
    assert [replies[number].text for number in range(9)] == [reply.text for reply in alone]


async def test_an_image_counts_towards_the_context(files: tuple[Path, Path]) -> None:
    async with seeing(files, context_tokens=64) as agent:
        reply = await complete(agent, ask("\ufffc", RED, max_output_tokens=None))
        assert reply.finished.usage.total_tokens == 64


@pytest.mark.parametrize(
    ("image", "error", "words"),
    [
        (Attachment(media_type="image/png", data=png(8, 8)[:40]), InvalidRequest, "cannot be decoded"),
        (Attachment(media_type="image/png", data=png(8, 8)[:16] + b"\x00\x0f" * 4), InvalidRequest, "pixels"),
        (Attachment(media_type="image/webp", data=b"RIFF\0\0\0\0WEBPVP8 "), Unsupported, "WebP"),
        (PAGE, Unsupported, "cannot read documents"),
    ],
)
async def test_an_image_that_cannot_be_read_is_refused_and_harms_nobody(
    files: tuple[Path, Path], image: Attachment, error: type[Exception], words: str
) -> None:
    async with seeing(files) as agent:
        with pytest.raises(error, match=words):
            await complete(agent, ask("What is this?", image))
        await complete(agent, ask("What is this?", RED))


async def test_text_that_looks_like_a_marker_is_text(files: tuple[Path, Path]) -> None:
    marker = mtmd_cpp.mtmd_default_marker().decode()
    async with seeing(files) as agent:
        reply = await complete(agent, ask(f"{marker} and {marker} \ufffc", RED))
        assert reply.finished.usage.output_tokens


async def test_a_file_that_is_no_projector_is_refused(files: tuple[Path, Path], tmp_path: Path) -> None:
    model, _ = files
    with pytest.raises(ModelError, match="no multimodal projector"):
        await LlamaAgent.load(model, projector=model)
    with pytest.raises(ModelNotFound):
        await LlamaAgent.load(model, projector=tmp_path / "none.gguf")


async def test_an_agent_with_a_projector_keeps_the_contract_on_images(files: tuple[Path, Path]) -> None:
    model, projector = files
    create = partial(LlamaAgent.load, model, projector=projector)
    await run_check(images_are_read_or_refused, Subject(create=create, prompt="x", long_prompt="x"))


async def test_a_model_without_a_projector_refuses_images(files: tuple[Path, Path]) -> None:
    async with await LlamaAgent.load(files[0]) as agent:
        assert not agent.card.capabilities.images
        with pytest.raises(Unsupported, match="cannot read images"):
            await complete(agent, ask("What is this?", RED))
