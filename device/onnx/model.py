"""onnxruntime-genai's generators, as three objects: the model with its vocabulary, the context that decodes, and the batch it decodes.

Only the worker process imports this module.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

from ...protocols import ModelError
from ..worker.sampling import Logits
from .adapters import Adapters
from .folder import OnnxFolder
from .runtime import first_line, genai, open_model
from .vocabulary import Vocabulary, read_template

_BATCH: Final = 512


class Model:
    """A loaded model and its vocabulary.

    Raises `ModelError` if the folder cannot be loaded.
    """

    def __init__(self, path: Path, folder: OnnxFolder, *, provider: str, threads: int) -> None:
        self.vocabulary = Vocabulary(path, folder)
        self.chat_template = read_template(path)
        self.handle: Any = open_model(str(path), provider, threads)


class Batch:
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


class Context:
    """The sequences' generators, each with a key-value cache for `tokens`, made when it is first used."""

    def __init__(self, model: Model, *, tokens: int, sequences: int, adapters: Adapters) -> None:
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
        self.batch = Batch(_BATCH)

    def decode(self) -> bool:
        """Run the batch through the model. Raises `ModelError` if a pass fails."""
        self._logits.clear()
        try:
            for sequence, tokens, index in self.batch.parts:
                generator = self._dressed(sequence)
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

    def _dressed(self, sequence: int) -> Any:  # noqa: ANN401 - onnxruntime-genai carries no types
        generator = self.generator(sequence)
        if self._worn.get(sequence, 0) != self._adapter:
            self._loaded_adapters.use(generator, self._adapter)
            self._worn[sequence] = self._adapter
        return generator
