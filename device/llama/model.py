"""llama.cpp's low-level API as objects: the model with its vocabulary, its LoRA adapters, and the context that decodes batches.

Only the worker process imports this module.
"""

import ctypes
import os
import time
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Final

import llama_cpp
import numpy as np
from llguidance import LLTokenizer
from llguidance.llamacpp import lltokenizer_from_vocab

from ...protocols import ModelError
from ..hardware.processors import Threads
from ..worker.engine import Logits
from ..worker.generation import REASONING_END, REASONING_START
from .devices import Placement, explanation, keep_log
from .extra_buffers import extra_buffers


class LlamaAdapters:
    """The LoRA adapters that were loaded on top of one model, numbered from 1.

    llama.cpp sets adapters for a whole context, and a change makes it plan its next pass again.

    Raises `ModelError` with llama.cpp's reason if a file is no adapter of this model.
    """

    def __init__(self, model: llama_cpp.llama_model_p, paths: Mapping[str, str]) -> None:
        self.names = tuple(paths)
        # llama.cpp frees them together with the model.
        self._handles = [_load_adapter(model, path) for path in paths.values()]
        self._strength = (ctypes.c_float * 1)(1.0)

    def use(self, context: llama_cpp.llama_context_p, number: int) -> None:
        """Set one adapter, or none for 0, for the passes of a context. Raises `ModelError` if it does not suit the context."""
        handles = None if number == 0 else self._handles[number - 1]
        if llama_cpp.llama_set_adapters_lora(context, handles, 0 if handles is None else 1, self._strength):
            raise ModelError(f"llama.cpp cannot use the adapter: {explanation()}", hint="load the model without it")


def _load_adapter(model: llama_cpp.llama_model_p, path: str) -> "ctypes.Array[ctypes._Pointer[ctypes.c_void_p]]":
    """Load an adapter and return a list of one, the form that llama.cpp takes."""
    handle = llama_cpp.llama_adapter_lora_init(model, path.encode())
    if not handle:
        hint = "give an adapter that was trained on exactly this base, converted to GGUF"
        raise ModelError(f"llama.cpp cannot load the adapter {path}: {explanation()}", hint=hint)
    kind = llama_cpp.llama_adapter_lora_p_ctypes
    single: ctypes.Array[ctypes._Pointer[ctypes.c_void_p]] = (kind * 1)(ctypes.cast(handle, kind))
    return single


_MEASURED: Final = 3
_SHORTEST_REST: Final = 64
_LONGEST_REST: Final = 4096
_CLEARLY: Final = 0.95
_HOPELESS: Final = 1.5


@dataclass(slots=True)
class _Contest:
    """Two numbers of threads for passes of similar size: one is in use, the other is tried now and then."""

    used: int
    other: int
    times: list[float] = field(default_factory=list)
    """Seconds per token of the latest passes with `used`."""
    trial_times: list[float] = field(default_factory=list)
    """Seconds per token of passes with `other`, during a trial."""
    rest: int = 0
    """Passes until the next trial."""
    next_rest: int = _SHORTEST_REST

    @property
    def on_trial(self) -> bool:
        return self.rest == 0 and len(self.times) == _MEASURED

    def report(self, seconds: float) -> None:
        if not self.on_trial:
            self.times = [*self.times, seconds][-_MEASURED:]
            self.rest = max(self.rest - 1, 0)
            return
        self.trial_times.append(seconds)
        fastest = min(self.times)
        # A number that is this slow at once will not win, and further passes with it would be wasted.
        if min(self.trial_times) > _HOPELESS * fastest or len(self.trial_times) == _MEASURED:
            self._decide(wins=min(self.trial_times) < _CLEARLY * fastest)

    def _decide(self, *, wins: bool) -> None:
        if wins:
            self.used, self.other, self.times = self.other, self.used, self.trial_times
        self.next_rest = _SHORTEST_REST if wins else min(2 * self.next_rest, _LONGEST_REST)
        self.rest, self.trial_times = self.next_rest, []


class ThreadTuner:
    """Chooses between `few` and `many` threads for passes of several tokens, separately for each order of size.

    llama.cpp's threads wait for each other by spinning. On idle cores, all of them together are fastest. If another process has a core,
    they spin for a partner that is not running, and one thread alone can be five times faster. Which of the two holds changes while we run.
    """

    def __init__(self, *, few: int, many: int) -> None:
        self._few = few
        self._many = many
        self._contests: dict[int, _Contest] = {}

    def threads(self, tokens: int) -> int:
        """Return the number of threads for the next pass, which has `tokens` tokens."""
        contest = self._contest(tokens)
        return contest.other if contest.on_trial else contest.used

    def report(self, tokens: int, seconds: float) -> None:
        """Take note of the duration of the pass for which `threads` was asked last."""
        self._contest(tokens).report(seconds / tokens)

    def _contest(self, tokens: int) -> _Contest:
        size = tokens.bit_length()
        contest = self._contests.get(size)
        if contest is None:
            contest = self._contests[size] = self._new_contest(size)
        return contest

    def _new_contest(self, size: int) -> _Contest:
        """Begin with the number that is in use for the nearest size: other programs leave the same cores to passes of all sizes."""
        nearest = min(self._contests, key=lambda known: abs(known - size), default=None)
        if nearest is None or self._contests[nearest].used == self._few:
            return _Contest(used=self._few, other=self._many)
        return _Contest(used=self._many, other=self._few)


_BATCH: Final = 512
_PIECE_BYTES: Final = 512
_GUARD: Final = b"\0"
_NO_SPACE: Final = 1
_NO_ROOM: Final = "unable to allocate"
"""In llama.cpp's message where a processor has too little memory."""


def start_backend() -> None:
    """Prepare llama.cpp once per process; its log is kept to explain what happens, and is not printed."""
    # ggml's message before it aborts is then its last line, and no debugger is started for a backtrace.
    os.environ.setdefault("GGML_NO_BACKTRACE", "1")
    keep_log()
    llama_cpp.llama_backend_init()


class LlamaModel:
    """A loaded model and its vocabulary.

    Raises `ModelError` with llama.cpp's reason if the file cannot be loaded.
    """

    def __init__(self, path: str, placement: Placement) -> None:
        parameters = llama_cpp.llama_model_default_params()
        parameters.n_gpu_layers = placement.layers
        parameters.use_extra_bufts = extra_buffers().usable
        devices = (ctypes.c_void_p * (len(placement.devices) + 1))(*(device.handle for device in placement.devices), None)
        parameters.devices = ctypes.addressof(devices)
        handle = llama_cpp.llama_model_load_from_file(path.encode(), parameters)
        if not handle:
            hint = f"update llama-cpp-python ({llama_cpp.__version__} may be too old for this model), or download the file again"
            reason = explanation()
            if placement.layers and _NO_ROOM in reason:
                hint = "close other programs that use the GPU, take a smaller model or context, or set allow_fallback = true"
            raise ModelError(f"llama.cpp cannot load {path}: {reason}", hint=hint)
        self.handle = handle
        self.vocabulary = LlamaVocabulary(llama_cpp.llama_model_get_vocab(handle))
        self.trained_context_tokens = int(llama_cpp.llama_model_n_ctx_train(handle))
        self.layers = int(llama_cpp.llama_model_n_layer(handle))
        self.parameters = int(llama_cpp.llama_model_n_params(handle))
        if not llama_cpp.llama_model_has_decoder(handle) or not self.trained_context_tokens:
            raise ModelError(f"{path} is not a text-generating model", hint="give a decoder model, such as a Llama or Qwen chat model")

    def free(self) -> None:
        """Free the weights, wherever they are; contexts of the model must be gone."""
        llama_cpp.llama_model_free(self.handle)

    @property
    def forgets(self) -> bool:
        """True if the last tokens of a sequence can be taken back; recurrent layers keep one state for all of them."""
        return not (llama_cpp.llama_model_is_recurrent(self.handle) or llama_cpp.llama_model_is_hybrid(self.handle))

    @property
    def chat_template(self) -> str | None:
        template = llama_cpp.llama_model_chat_template(self.handle, None)
        return template.decode("utf-8", "replace") if template else None


class LlamaVocabulary:
    """Between text and token ids."""

    def __init__(self, handle: llama_cpp.llama_vocab_p) -> None:
        self.handle = handle
        self.size = int(llama_cpp.llama_vocab_n_tokens(handle))
        self.ends: frozenset[int] = frozenset(token for token in range(self.size) if llama_cpp.llama_vocab_is_eog(handle, token))
        self._pieces: dict[int, bytes] = {}

    @property
    def start(self) -> int | None:
        """The token that a prompt begins with, if this model wants one."""
        return int(llama_cpp.llama_vocab_bos(self.handle)) if llama_cpp.llama_vocab_get_add_bos(self.handle) else None

    @property
    def start_text(self) -> str:
        return self._literal(int(llama_cpp.llama_vocab_bos(self.handle)))

    @property
    def end_text(self) -> str:
        return self._literal(int(llama_cpp.llama_vocab_eos(self.handle)))

    @cached_property
    def control_texts(self) -> frozenset[str]:
        """Texts that the tokenizer would turn into control tokens."""
        control = llama_cpp.LLAMA_TOKEN_ATTR_CONTROL | llama_cpp.LLAMA_TOKEN_ATTR_UNKNOWN
        tokens = (token for token in range(self.size) if llama_cpp.llama_vocab_get_attr(self.handle, token) & control)
        return frozenset(self._literal(token) for token in tokens) - {""}

    @cached_property
    def longest_token(self) -> int:
        """Bytes of the longest text that one token can stand for."""
        return max((len(self._literal(token).encode()) for token in range(self.size)), default=1)

    def tokenize(self, text: str) -> list[int]:
        """Return the token ids of `text`, in which the texts of control tokens count as those tokens. No start token is added."""
        return self._tokenize_bytes(text.encode())

    def tokenize_inside(self, text: str) -> list[int]:
        """Tokenize text that follows other text: without the blank that SentencePiece puts in front of the first word."""
        if not self._guard:
            return self.tokenize(text)
        tokens = self._tokenize_bytes(_GUARD + text.encode())
        return tokens[len(self._guard) :] if tokens[: len(self._guard)] == self._guard else self.tokenize(text)

    @cached_property
    def puts_blank_in_front(self) -> bool:
        """True if the tokenizer puts a blank in front of the first word of a text, as SentencePiece does."""
        return bool(llama_cpp.llama_vocab_type(self.handle) == llama_cpp.LLAMA_VOCAB_TYPE_SPM)

    @cached_property
    def _guard(self) -> list[int]:
        """Tokens, blank included, of a byte that no token joins with its neighbours; empty where no blank is put in front."""
        return self._tokenize_bytes(_GUARD) if self.puts_blank_in_front else []

    def _tokenize_bytes(self, data: bytes) -> list[int]:
        room = len(data) + 2
        while True:
            tokens = (llama_cpp.llama_token * room)()
            # add_special is off: a start token is the caller's business; parse_special is on.
            count = llama_cpp.llama_tokenize(self.handle, data, len(data), tokens, room, False, True)
            if count >= 0:
                return list(tokens[:count])
            room = -count

    def piece(self, token: int) -> bytes:
        """Return the bytes that a token stands for in text; none for control tokens, except the markers of reasoning."""
        piece = self._pieces.get(token)
        if piece is None:
            piece = self._pieces[token] = self._render(token)
        return piece

    def guidance_tokenizer(self) -> LLTokenizer:
        """Return this vocabulary as llguidance's tokenizer."""
        return lltokenizer_from_vocab(self.handle, eos_token=sorted(self.ends))

    def _render(self, token: int) -> bytes:
        room, special = _PIECE_BYTES, self._literal(token) in (REASONING_START, REASONING_END)
        while True:
            buffer = ctypes.create_string_buffer(room)
            length = llama_cpp.llama_token_to_piece(self.handle, token, buffer, room, 0, special)
            if length >= 0:
                return buffer.raw[:length]
            room = -length

    def _literal(self, token: int) -> str:
        if token < 0:
            return ""
        text: bytes = llama_cpp.llama_vocab_get_text(self.handle, token)
        return text.decode("utf-8", "replace")


class LlamaContext:
    """The key-value cache of all sequences, and the pass through the model that fills it; its memory is freed with it.

    Raises `ModelError` if the memory for it cannot be had.
    """

    def __init__(self, model: LlamaModel, *, cells: int, sequences: int, threads: Threads, adapters: LlamaAdapters) -> None:
        parameters = llama_cpp.llama_context_default_params()
        parameters.n_ctx = cells
        parameters.n_batch = parameters.n_ubatch = _BATCH
        parameters.n_seq_max = sequences
        parameters.n_threads, parameters.n_threads_batch = threads.single, threads.batch
        parameters.kv_unified = True
        parameters.no_perf = True
        handle = llama_cpp.llama_init_from_model(model.handle, parameters)
        if not handle:
            hint = "give a smaller context_tokens or parallel"
            raise ModelError(f"llama.cpp cannot make a context of {cells} tokens: {explanation()}", hint=hint)
        self.handle = handle
        # At the end of the process, the system frees the memory sooner than this would.
        weakref.finalize(self, llama_cpp.llama_free, handle).atexit = False
        self._threads = threads
        self._tuner = None if threads.single == threads.batch else ThreadTuner(few=threads.single, many=threads.batch)
        self._memory = llama_cpp.llama_get_memory(handle)
        self._vocabulary_size = model.vocabulary.size
        self._window = int(llama_cpp.llama_model_n_swa(model.handle))
        self._views: dict[int, Logits] = {}
        self.cells = int(llama_cpp.llama_n_ctx(handle))
        self.batch = LlamaBatch(_BATCH)
        self.adapters = adapters.names
        self._loaded_adapters = adapters
        self._adapter = 0

    def use_adapter(self, number: int) -> None:
        """Let the passes from now on go through an adapter; 0: through the model as it is. Raises `ModelError` if that fails."""
        if number != self._adapter:
            self._loaded_adapters.use(self.handle, number)
            self._adapter = number

    def decode(self) -> bool:
        """Run the batch through the model; False if the cache has no room for it.

        Raises `ModelError` if the pass fails.
        """
        tokens = self.batch.size
        if self._tuner is None or tokens == 1:
            return self._decode()
        llama_cpp.llama_set_n_threads(self.handle, self._threads.single, self._tuner.threads(tokens))
        begin = time.perf_counter()
        done = self._decode()
        self._tuner.report(tokens, time.perf_counter() - begin)
        return done

    def _decode(self) -> bool:
        code = llama_cpp.llama_decode(self.handle, self.batch.native)
        if code not in (0, _NO_SPACE):
            raise ModelError(f"llama_decode returned {code}: {explanation()}", hint="the model or its memory is broken; load it again")
        return bool(code == 0)

    def logits(self, index: int) -> Logits:
        """Return the logits at one position of the decoded batch, valid until the next `decode`."""
        pointer = llama_cpp.llama_get_logits_ith(self.handle, index)
        address = ctypes.addressof(pointer.contents)
        view = self._views.get(address)
        if view is None:
            view = self._views[address] = np.ctypeslib.as_array(pointer, (self._vocabulary_size,))
        return view

    def forget(self, sequence: int, start: int) -> bool:
        """Drop a sequence's cells from position `start` on; False if what remains cannot be continued."""
        if not llama_cpp.llama_memory_seq_rm(self._memory, sequence, start, -1):
            return False  # Recurrent models keep one state for all positions, which cannot be cut.
        # Layers that only attend to a sliding window may have lost the cells in front of their last window.
        needed = start - self._window
        return not self._window or needed <= 0 or 0 <= llama_cpp.llama_memory_seq_pos_min(self._memory, sequence) <= needed

    def share(self, source: int, target: int, end: int) -> bool:
        """Let `target` use the cells of `source` up to position `end`, exclusive."""
        llama_cpp.llama_memory_seq_cp(self._memory, source, target, 0, end)
        return True


class LlamaBatch:
    """The tokens of one pass through the model, in memory that llama.cpp reads in place."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.size = 0
        self._tokens = np.zeros(capacity, dtype=np.int32)
        self._positions = np.zeros(capacity, dtype=np.int32)
        self._sequences = np.zeros(capacity, dtype=np.int32)
        self._counts = np.ones(capacity, dtype=np.int32)
        self._wanted = np.zeros(capacity, dtype=np.int8)
        self._rows = _row_pointers(self._sequences)
        self.native = llama_cpp.llama_batch(
            n_tokens=0,
            token=self._tokens.ctypes.data_as(ctypes.POINTER(llama_cpp.llama_token)),
            embd=None,
            pos=self._positions.ctypes.data_as(ctypes.POINTER(llama_cpp.llama_pos)),
            n_seq_id=self._counts.ctypes.data_as(ctypes.POINTER(ctypes.c_int32)),
            seq_id=self._rows,
            logits=self._wanted.ctypes.data_as(ctypes.POINTER(ctypes.c_int8)),
        )

    def clear(self) -> None:
        self.size = self.native.n_tokens = 0

    def add(self, tokens: Sequence[int], *, position: int, sequence: int, last: bool) -> int:
        """Append tokens of one sequence; returns the index of the last one, whose logits are computed if it is the `last` of its step."""
        start, end = self.size, self.size + len(tokens)
        self._tokens[start:end] = tokens
        self._positions[start:end] = range(position, position + len(tokens))
        self._sequences[start:end] = sequence
        self._wanted[start:end] = 0
        self._wanted[end - 1] = last
        self.size = self.native.n_tokens = end
        return end - 1


def _row_pointers(sequences: np.ndarray[tuple[int], np.dtype[np.int32]]) -> "ctypes.Array[ctypes._Pointer[ctypes.c_int32]]":
    pointer = ctypes.POINTER(llama_cpp.llama_seq_id)
    rows = (ctypes.cast(sequences.ctypes.data + index * sequences.itemsize, pointer) for index in range(len(sequences)))
    pointers: ctypes.Array[ctypes._Pointer[ctypes.c_int32]] = (pointer * len(sequences))(*rows)
    return pointers
