"""Records drafts of the shipped models with the signals of their tokens and the near model's hidden states.

    python -m benchmarks.routing_figures.near_recording [--tasks 500] [--file FILE]     minutes

Every task is served by `Hybrid` on the device alone, once by the near model and once by the far one. Both are decoded in this process by
the worker's own engine, on one thread, so that the logits of each token can be seen.
"""

import argparse
import asyncio
import ctypes
from collections.abc import AsyncGenerator, Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import llama_cpp
import numpy
from llama_cpp._ggml import libggml

from nearfar import Hybrid
from nearfar.device.hardware.processors import Threads
from nearfar.device.llama.devices import CPU_ONLY
from nearfar.device.llama.model import LlamaAdapters, LlamaContext, LlamaModel, start_backend
from nearfar.device.worker.engine import Logits, common_prefix
from nearfar.device.worker.generation import Generation, ToolSyntax
from nearfar.device.worker.prompt import PromptBuilder
from nearfar.device.worker.protocol import StepEventKind
from nearfar.device.worker.sampling import Grammars, log_probability
from nearfar.orchestrator.lab.worlds import World, WorldTask
from nearfar.orchestrator.lab.worlds.loading import draw_tasks, open_world
from nearfar.protocols import (
    AgentCard,
    Capabilities,
    ContextOverflow,
    Finished,
    Limits,
    NearfarError,
    Side,
    StepEvent,
    StepRequest,
    TextDelta,
    ToolCall,
    ToolCalled,
    Usage,
)

from .near_drafts import FILE, WORLDS, RecordedDraft, RecordedDrafts, TokenSignals, save_drafts, signals_of

if TYPE_CHECKING:
    from .near_drafts import States

SEED: Final = 4242
"""No other figure, test or choice draws tasks with it."""
TASKS: Final = 500
MODELS: Final = Path(__file__).parents[2] / "device" / "models"
_TURNS: Final = 40
_CONTEXT: Final = 2048


class HeardGeneration(Generation):
    """A generation that keeps the signals of each token that counts towards its confidence."""

    def __init__(self, *arguments: Any, **options: Any) -> None:  # noqa: ANN401 - those of a generation
        super().__init__(*arguments, **options)
        self.heard: list[TokenSignals] = []

    def weigh(self, logits: Logits, token: int) -> None:
        """Keep the token's signals."""
        super().weigh(logits, token)
        second, first = numpy.partition(logits, -2)[-2:]
        of_first = log_probability(logits, int(logits.argmax()))
        mean = of_first - float(first) + float(logits.mean(dtype=numpy.float64))
        signals = TokenSignals(log_probability(logits, token), float(first - second), -mean - float(numpy.log(len(logits))))
        self.heard.append(signals)


class HeardAgent:
    """A model in this process that takes one step at a time and keeps the prompt and the generation of each.

    Args:
        name: of a model that ships.
        adapter: the name of an adapter that ships, through which all its steps go; None: none.
    """

    def __init__(self, name: str, adapter: str | None = None) -> None:
        self.model = LlamaModel(str(MODELS / f"{name}.gguf"), CPU_ONLY)
        self.card = AgentCard(
            name=name,
            side=Side.NEAR,
            model=name,
            capabilities=Capabilities(tools=True, json_schema=True, confidence=True),
            limits=Limits(context_tokens=_CONTEXT),
        )
        self.steps: list[tuple[list[int], HeardGeneration]] = []
        worn = {} if adapter is None else {adapter: str(MODELS / f"{adapter}.gguf")}
        adapters = LlamaAdapters(self.model.handle, worn)
        self._context = LlamaContext(self.model, cells=_CONTEXT, sequences=1, threads=Threads(1, 1), adapters=adapters)
        self._context.use_adapter(len(worn))
        self._prompts = PromptBuilder(self.model, context_tokens=_CONTEXT)
        self._grammars = Grammars(self.model.vocabulary)
        self._syntax = ToolSyntax.of(self.model.vocabulary)
        self._cached: list[int] = []

    async def step(self, request: StepRequest) -> AsyncGenerator[StepEvent, None]:
        """Decode a whole step, then tell of it."""
        prompt = self._prompts.prompt(request).tokens
        if len(prompt) >= _CONTEXT:
            raise ContextOverflow("the conversation is longer than the context", hint="draw easier tasks")
        generation = HeardGeneration(
            request,
            vocabulary=self.model.vocabulary,
            syntax=self._syntax,
            grammars=self._grammars,
            most_tokens=min(_CONTEXT - len(prompt), request.max_output_tokens or _CONTEXT),
            stop=request.stop,
        )
        self._decode(prompt, generation)
        self.steps.append((prompt, generation))
        for kind, payload in generation.events:
            yield self._event(kind, payload)
        assert generation.finished is not None, "it was decoded to its end"
        usage = Usage(input_tokens=len(prompt), output_tokens=generation.output_tokens)
        yield Finished(reason=generation.finished, usage=usage, model=self.card.model, confidence=generation.confidence)

    async def aclose(self) -> None:
        """Do nothing: the model is freed with the process."""

    def _event(self, kind: StepEventKind, payload: Any) -> StepEvent:  # noqa: ANN401 - JSON
        if kind is StepEventKind.TEXT:
            return TextDelta(text=payload)
        return ToolCalled(call=ToolCall(id=f"call_{len(self.steps)}", **payload))

    def _decode(self, prompt: list[int], generation: Generation) -> None:
        position = min(common_prefix(self._cached, prompt), len(prompt) - 1)
        self._context.forget(0, position)
        self._cached = list(prompt)
        queue = prompt[position:]
        batch = self._context.batch
        while queue:
            part, queue = queue[: batch.capacity], queue[batch.capacity :]
            batch.clear()
            index = batch.add(part, position=position, sequence=0, last=True)
            self._context.decode()
            position += len(part)
            if not queue:
                queue = generation.advance(self._context.logits(index))
                self._cached += queue


class HiddenStates:
    """Reads the residual stream in the middle of a model at the last token of a prompt, by a callback on llama.cpp's graph."""

    def __init__(self, model: LlamaModel) -> None:
        self._name = f"l_out-{model.layers // 2 - 1}".encode()
        self._state = numpy.zeros(llama_cpp.llama_model_n_embd(model.handle), dtype=numpy.float32)
        self._callback = llama_cpp.ggml_backend_sched_eval_callback(self._look)
        parameters = llama_cpp.llama_context_default_params()
        parameters.n_ctx = parameters.n_batch = parameters.n_ubatch = _CONTEXT
        parameters.n_threads = parameters.n_threads_batch = 1
        parameters.cb_eval = self._callback
        self._context = llama_cpp.llama_init_from_model(model.handle, parameters)

    def at_end_of(self, prompt: Sequence[int]) -> "States":
        """Return the state, one number for each dimension of the model."""
        llama_cpp.llama_memory_clear(llama_cpp.llama_get_memory(self._context), False)
        tokens = (llama_cpp.llama_token * len(prompt))(*prompt)
        if llama_cpp.llama_decode(self._context, llama_cpp.llama_batch_get_one(tokens, len(prompt))):
            raise RuntimeError("llama.cpp could not read the prompt")
        return self._state.copy()

    def _look(self, tensor: int, asks: bool, _data: object) -> bool:
        """Say that this tensor is wanted, and on the second call copy its last row."""
        if _tensor_name(tensor) != self._name:
            return False
        if not asks:
            row = self._state.nbytes
            _copy_tensor(tensor, self._state.ctypes.data, _tensor_bytes(tensor) - row, row)
        return True


def _foreign(name: str, result: Any, *arguments: Any) -> Any:  # noqa: ANN401 - a foreign function
    function = libggml[name]
    function.restype, function.argtypes = result, list(arguments)
    return function


_tensor_name = _foreign("ggml_get_name", ctypes.c_char_p, ctypes.c_void_p)
_tensor_bytes = _foreign("ggml_nbytes", ctypes.c_size_t, ctypes.c_void_p)
_copy_tensor = _foreign("ggml_backend_tensor_get", None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t)


class Recorder:
    """Both models, and the tasks that they are given."""

    def __init__(self) -> None:
        start_backend()
        self._near, self._far = HeardAgent("near"), HeardAgent("far")
        self._states = HiddenStates(self._near.model)

    async def record(self, world: World, task: WorldTask) -> RecordedDraft:
        """Let both models carry out a task."""
        near_right, far_right = await _is_done(self._near, world, task), await _is_done(self._far, world, task)
        prompts = [self._near.steps[place][0] for place in (0, -1)]
        return RecordedDraft(
            near_right=near_right,
            far_right=far_right,
            near=_signals(self._near),
            far=_signals(self._far),
            states=numpy.stack([self._states.at_end_of(prompt) for prompt in prompts]),
        )


async def _is_done(agent: HeardAgent, world: World, task: WorldTask) -> bool:
    agent.steps.clear()
    answer = ""
    with closing(world.reset(task)) as episode:
        try:
            async with Hybrid(near=agent, policy={"strategy": "device", "maximum_turns": _TURNS}) as hybrid:
                answer = (await hybrid.run(task.prompt, tools=episode.tools)).text
        except NearfarError:
            pass  # out of turns, or of context: the draft as it is, which is graded without an answer
        return episode.grade(answer).success


def _signals(agent: HeardAgent) -> Any:  # noqa: ANN401 - an array
    return signals_of([generation.heard for _, generation in agent.steps])


async def record(tasks: int) -> dict[str, RecordedDrafts]:
    """Record so many tasks of each world."""
    recorder = Recorder()
    worlds = {name: open_world(name) for name in WORLDS}
    return {
        name: RecordedDrafts.of([await recorder.record(world, task) for task in draw_tasks(world, tasks, SEED)])
        for name, world in worlds.items()
    }


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", type=int, default=TASKS, help="per world")
    parser.add_argument("--file", type=Path, default=FILE)
    options = parser.parse_args()
    save_drafts(asyncio.run(record(options.tasks)), options.file)
