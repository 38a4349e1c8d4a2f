"""LoRA adapters in onnxruntime-genai, which has them set for a generator, between any two of its passes.

Only the worker process imports this module.
"""

from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import numpy as np

from ...protocols import ModelError
from .folder import AdapterInput
from .runtime import first_line, genai

_NONE: Final = ""
"""The name of the adapter that changes nothing: an empty matrix for each input. A generator cannot be told to use none again, and what one
adapter does not give stays as the one before has given it."""


class Adapters:
    """The adapters that were loaded on top of one model, numbered from 1.

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
    import onnxruntime

    empty = {name: np.zeros(each.sizes, dtype=each.type) for name, each in inputs.items()}
    file = onnxruntime.AdapterFormat()
    file.set_parameters({name: onnxruntime.OrtValue.ortvalue_from_numpy(matrix) for name, matrix in empty.items()})
    path = str(folder / "none.onnx_adapter")
    file.export_adapter(path)
    return path
