"""onnxruntime-genai's generators as objects: the model with its vocabulary, its LoRA adapters, and the context that decodes batches.

onnxruntime falls back to the CPU without a word, so the provider that really runs the model is read from a profile of one pass.

Only the worker process imports this module.
"""

import json
import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import numpy as np
from llguidance import LLTokenizer
from numpy.typing import NDArray
from tokenizers import Tokenizer

from ...protocols import Execution, ModelError
from ..hardware.processors import CPU, ProcessorKind, Provider
from ..worker.engine import Logits
from ..worker.generation import REASONING_END, REASONING_START
from . import PROVIDERS, short_name
from .folder import TEMPLATE, TOKENIZER, TOKENIZER_CONFIGURATION, AdapterInput, OnnxFolder

# From 1.29 on, onnxruntime and onnxruntime-genai send telemetry unless this is set before they are loaded.
os.environ["ORT_DISABLE_TELEMETRY"] = "1"

import onnxruntime_genai

genai: Any = onnxruntime_genai
"""It carries no types."""


def providers() -> list[Provider]:
    """Return the providers that this machine's onnxruntime was built with; loading a model shows whether one can be used."""
    import onnxruntime

    present = set(onnxruntime.get_available_providers())
    others = [Provider(name=name, kind=kind) for name, (_, full, kind) in PROVIDERS.items() if full in present]
    return [*others, Provider(name=CPU, kind=ProcessorKind.CPU)]


def open_model(path: str, provider: str, threads: int) -> Any:  # noqa: ANN401 - onnxruntime-genai carries no types
    """Load a `genai.Model` on a provider. Raises `ModelError` if it cannot be loaded there."""
    try:
        configuration = genai.Config(path)
        # The folder may name providers of the machine on which it was made.
        configuration.clear_providers()
        if provider != CPU:
            configuration.append_provider(PROVIDERS[provider].genai)
        options = f'{{"intra_op_num_threads": {threads}, "inter_op_num_threads": 1}}'
        configuration.overlay(f'{{"model": {{"decoder": {{"session_options": {options}}}}}}}')
        return genai.Model(configuration)
    except RuntimeError as error:
        hint = f"onnxruntime-genai {genai.__version__} may be too old for this model, or the folder is damaged: download it again"
        raise ModelError(f"onnxruntime-genai cannot load {path}: {first_line(error)}", hint=hint) from error


def first_line(error: Exception) -> str:
    """Return onnxruntime's message without the stack that it adds."""
    lines = str(error).strip().splitlines()
    return lines[0][:400] if lines else type(error).__name__


_GUARD: Final = "\0"
_BLANK: Final = "\N{LOWER ONE EIGHTH BLOCK}"
"""SentencePiece's character for a blank."""


class OnnxVocabulary:
    """The tokens of one model.

    Raises `ModelError` if its tokenizer is unusable.
    """

    def __init__(self, path: Path, folder: OnnxFolder) -> None:
        text = (path / TOKENIZER).read_text(encoding="utf-8")
        self.size = folder.vocabulary
        self.ends = frozenset(folder.ends)
        with _blame_tokenizer_file(path):
            self._tokenizer = Tokenizer.from_str(text)
        if (size := self._tokenizer.get_vocab_size()) > self.size:
            message = f"the tokenizer has {size} tokens, the model {self.size}"
            raise ModelError(message, hint="the folder's files belong to different models: download it again")
        with _blame_tokenizer_file(path):
            self._guidance = LLTokenizer(text, n_vocab=self.size, eos_token=sorted(self.ends))
        self._added: dict[int, Any] = self._tokenizer.get_added_tokens_decoder()
        self._settings = read_settings(path)
        self._pieces: dict[int, bytes] = {}

    @cached_property
    def start(self) -> int | None:
        """The token that a prompt begins with, if this model wants one."""
        # The tokens of an empty text are those that the tokenizer puts in front of every text.
        added: list[int] = self._tokenizer.encode("").ids
        return added[0] if added and added[0] not in self.ends else None

    @property
    def start_text(self) -> str:
        return _token_text(self._settings.get("bos_token"))

    @property
    def end_text(self) -> str:
        return _token_text(self._settings.get("eos_token"))

    @cached_property
    def control_texts(self) -> frozenset[str]:
        """Texts that the tokenizer would turn into control tokens."""
        return frozenset(str(token.content) for token in self._added.values() if token.special)

    @cached_property
    def longest_token(self) -> int:
        """Bytes of the longest text that one token can stand for."""
        return max(len(self._bytes(token)) for token in range(self.size))

    def tokenize(self, text: str) -> list[int]:
        """Return the token ids of `text`, in which the texts of control tokens count as those tokens. No start token is added."""
        ids: list[int] = self._tokenizer.encode(text, add_special_tokens=False).ids
        return ids

    def tokenize_inside(self, text: str) -> list[int]:
        """Tokenize text that follows other text: without the blank that SentencePiece puts in front of the first word."""
        if not self.puts_blank_in_front:
            return self.tokenize(text)
        guard, tokens = self.tokenize(_GUARD), self.tokenize(_GUARD + text)
        return tokens[len(guard) :] if tokens[: len(guard)] == guard else self.tokenize(text)

    @cached_property
    def puts_blank_in_front(self) -> bool:
        """True if the tokenizer puts a blank in front of the first word of a text, as SentencePiece does."""
        return bool(self._tokenizer.encode("a", add_special_tokens=False).tokens[0].startswith(_BLANK))

    def piece(self, token: int) -> bytes:
        """Return the bytes that a token stands for in text; none for tokens without text and for control tokens, except the markers of
        reasoning."""
        piece = self._pieces.get(token)
        if piece is None:
            piece = self._pieces[token] = b"" if self._is_silent(token) else self._bytes(token)
        return piece

    def guidance_tokenizer(self) -> LLTokenizer:
        """Return this vocabulary as llguidance's tokenizer."""
        return self._guidance

    def _is_silent(self, token: int) -> bool:
        added = self._added.get(token)
        if added is not None and added.content in (REASONING_START, REASONING_END):
            return False
        return token in self.ends or self._tokenizer.id_to_token(token) is None or (added is not None and added.special)

    def _bytes(self, token: int) -> bytes:
        return bytes(self._guidance.decode_bytes([token]))


@contextmanager
def _blame_tokenizer_file(path: Path) -> Iterator[None]:
    """Turn any exception of the block into a `ModelError` about the tokenizer file."""
    try:
        yield
    except Exception as error:  # These libraries raise Exception itself.
        raise ModelError(f"{path / TOKENIZER} is not a usable tokenizer: {error}", hint="download the folder again") from error


def read_settings(path: Path) -> dict[str, Any]:
    """Return the contents of tokenizer_config.json; empty if there is none."""
    file = path / TOKENIZER_CONFIGURATION
    settings: dict[str, Any] = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
    return settings


def read_template(path: Path) -> str | None:
    """Return the folder's chat template, if it has one."""
    if (path / TEMPLATE).is_file():
        return (path / TEMPLATE).read_text(encoding="utf-8")
    template = read_settings(path).get("chat_template")
    if isinstance(template, list):  # Several, each with a name.
        named = {entry.get("name"): entry.get("template") for entry in template if isinstance(entry, dict)}
        template = named.get("default")
    return template if isinstance(template, str) else None


def _token_text(token: object) -> str:
    """Return the text of a token in tokenizer_config.json, which is a text or an object."""
    text = token.get("content") if isinstance(token, dict) else token
    return text if isinstance(text, str) else ""


_NONE: Final = ""
"""The name of the adapter that changes nothing: an empty matrix for each input. A generator cannot be told to use none again, and what one
adapter does not give stays as the one before has given it."""


class OnnxAdapters:
    """The LoRA adapters that were loaded on top of one model, numbered from 1. A generator can change its adapter between any two passes.

    Raises `ModelError` if a file is no adapter.
    """

    def __init__(self, model: Any, paths: Mapping[str, str], inputs: Mapping[str, AdapterInput]) -> None:  # noqa: ANN401 - genai's own
        self.names = tuple(paths)
        self._loaded: Any = genai.Adapters(model)
        if not paths:
            return
        with TemporaryDirectory(prefix="nearfar-") as folder:
            self._load(_NONE, _write_empty(Path(folder), inputs))
            for name, path in paths.items():
                self._load(name, path)

    def use(self, generator: Any, number: int) -> None:  # noqa: ANN401 - onnxruntime-genai carries no types
        """Set one adapter, or none for 0, for the passes of a generator from now on."""
        generator.set_active_adapter(self._loaded, _NONE)
        if number:
            generator.set_active_adapter(self._loaded, self.names[number - 1])

    def _load(self, name: str, path: str) -> None:
        try:
            self._loaded.load(path, name)
        except RuntimeError as error:
            message = f"onnxruntime cannot load the adapter {path}: {first_line(error)}"
            raise ModelError(message, hint="give an .onnx_adapter file that was made for this model") from error


def _write_empty(folder: Path, inputs: Mapping[str, AdapterInput]) -> str:
    path = folder / "none.onnx_adapter"
    write_adapter(path, {name: np.zeros(each.sizes, dtype=each.type) for name, each in inputs.items()})
    return str(path)


def write_adapter(path: Path, matrices: Mapping[str, NDArray[Any]]) -> None:
    """Write an adapter's matrices, by the names of the model's inputs, in the form that onnxruntime loads."""
    import onnxruntime

    file = onnxruntime.AdapterFormat()
    file.set_parameters({name: onnxruntime.OrtValue.ortvalue_from_numpy(matrix) for name, matrix in matrices.items()})
    file.export_adapter(str(path))


_BATCH: Final = 512


class OnnxModel:
    """A loaded model and its vocabulary.

    Raises `ModelError` if the folder cannot be loaded.
    """

    def __init__(self, path: Path, folder: OnnxFolder, *, provider: str, threads: int) -> None:
        self.vocabulary = OnnxVocabulary(path, folder)
        self.chat_template = read_template(path)
        self.handle: Any = open_model(str(path), provider, threads)


class OnnxBatch:
    """The tokens of one pass. Each sequence has a generator of its own, so they go through the model one after the other."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.size = 0
        self.parts: list[tuple[int, Sequence[int], int]] = []
        """Sequence, tokens, and the index of the last of them."""

    def clear(self) -> None:
        self.size = 0
        self.parts.clear()

    def add(self, tokens: Sequence[int], *, position: int, sequence: int, last: bool) -> int:
        """Append tokens of one sequence, which holds those before `position`; returns the index of the last one."""
        del position, last  # The generator counts itself, and computes the last token's logits in any case.
        self.size += len(tokens)
        self.parts.append((sequence, tokens, self.size - 1))
        return self.size - 1


class OnnxContext:
    """The sequences' generators, each with a key-value cache for `tokens`, made when it is first used."""

    def __init__(self, model: OnnxModel, *, tokens: int, sequences: int, adapters: OnnxAdapters) -> None:
        self._model = model.handle
        self._tokens = tokens
        self._generators: dict[int, Any] = {}
        self._loaded_adapters = adapters
        self._adapter = 0
        self._worn: dict[int, int] = {}
        """The adapter that each generator has set; those that never had one are not in it."""
        self.adapters = adapters.names
        self._logits: dict[int, Logits] = {}
        self.cells = tokens * sequences
        self.batch = OnnxBatch(_BATCH)

    def decode(self) -> bool:
        """Run the batch through the model. Raises `ModelError` if a pass fails."""
        self._logits.clear()
        try:
            for sequence, tokens, index in self.batch.parts:
                generator = self._generator_with_adapter(sequence)
                generator.append_tokens(np.array(tokens, dtype=np.int32))
                self._logits[index] = generator.get_logits().reshape(-1)
        except RuntimeError as error:
            hint = "the model or its memory is broken; load it again"
            raise ModelError(f"onnxruntime-genai cannot run the model: {first_line(error)}", hint=hint) from error
        return True

    def use_adapter(self, number: int) -> None:
        """Let the passes from now on go through an adapter; 0: through the model as it is."""
        self._adapter = number

    def logits(self, index: int) -> Logits:
        """Return the logits after one of the batch's parts."""
        return self._logits[index]

    def forget(self, sequence: int, start: int) -> bool:
        """Drop a sequence's cells from position `start` on; False if what remains cannot be continued."""
        generator = self._generators.get(sequence)
        if generator is None:
            return start == 0
        try:
            generator.rewind_to(start)
        except RuntimeError:  # Recurrent models keep one state for all positions, which cannot be cut.
            del self._generators[sequence]
            self._worn.pop(sequence, None)
            return start == 0
        return True

    def share(self, source: int, target: int, end: int) -> bool:
        """Return False: a generator's cache is its own."""
        return False

    def generator(self, sequence: int) -> Any:  # noqa: ANN401 - onnxruntime-genai carries no types
        """Return the generator of a sequence; make it at the first call."""
        if sequence not in self._generators:
            parameters = genai.GeneratorParams(self._model)
            parameters.set_search_options(max_length=self._tokens)
            self._generators[sequence] = genai.Generator(self._model, parameters)
        return self._generators[sequence]

    def _generator_with_adapter(self, sequence: int) -> Any:  # noqa: ANN401 - onnxruntime-genai carries no types
        generator = self.generator(sequence)
        if self._worn.get(sequence, 0) != self._adapter:
            self._loaded_adapters.use(generator, self._adapter)
            self._worn[sequence] = self._adapter
        return generator


_CPU: Final = "CPUExecutionProvider"
_PROBE: Final = 0
"""The sequence and the token that are used to look."""


def really_running(context: OnnxContext, *, layers: int, threads: int, vocabulary: int) -> Execution:
    """Run a token through the model and see which provider computed its operators.

    Raises `ModelError` if it cannot be run, or computes other logits than one per token of the vocabulary.
    """
    with TemporaryDirectory(prefix="nearfar-") as folder:
        try:
            generator = context.generator(_PROBE)
            generator.set_runtime_option("enable_profiling", str(Path(folder) / "pass"))
            _run_probe(context, vocabulary)
            generator.set_runtime_option("enable_profiling", "0")
        except RuntimeError as error:
            message = f"onnxruntime-genai cannot run the model: {first_line(error)}"
            raise ModelError(message, hint="the folder is damaged, or made for another version: download it again") from error
        context.forget(_PROBE, 0)
        events = [event for file in Path(folder).iterdir() for event in json.loads(file.read_text(encoding="utf-8"))]
    return _execution(events, layers, threads)


def check_adapters(context: OnnxContext, paths: Mapping[str, str]) -> None:
    """Run a token through each adapter. Raises `ModelError` for one of another base: onnxruntime finds out no earlier."""
    for number, (name, path) in enumerate(paths.items(), start=1):
        context.use_adapter(number)
        try:
            _pass(context)
        except ModelError as error:
            hint = "give an adapter that was made for exactly this model, and a model that was exported to take adapters"
            raise ModelError(f"the adapter {name!r} from {path} does not suit the model: {error.message}", hint=hint) from error
        context.forget(_PROBE, 0)
    context.use_adapter(0)


def _run_probe(context: OnnxContext, vocabulary: int) -> None:
    if (size := len(_pass(context))) != vocabulary:
        message = f"the model computes {size} logits for a vocabulary of {vocabulary} tokens"
        raise ModelError(message, hint="its genai_config.json belongs to another model: download the folder again")


def _pass(context: OnnxContext) -> Logits:
    context.batch.clear()
    index = context.batch.add([_PROBE], position=0, sequence=_PROBE, last=True)
    context.decode()
    return context.logits(index)


def _execution(events: list[dict[str, Any]], layers: int, threads: int) -> Execution:
    """Return the provider of most operators; a layer counts where its attention is."""
    nodes = [event["args"] for event in events if event.get("cat") == "Node" and "provider" in event.get("args", {})]
    providers = Counter(str(node["provider"]) for node in nodes)
    attention = [node["provider"] for node in nodes if "Attention" in str(node.get("op_name"))]
    main = providers.most_common(1)[0][0] if providers else _CPU
    return Execution(
        engine="onnxruntime-genai",
        provider=short_name(main),
        layers=layers,
        offloaded_layers=sum(provider != _CPU for provider in attention) if len(attention) == layers else None,
        threads=threads,
    )
