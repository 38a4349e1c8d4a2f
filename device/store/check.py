"""Check the files of a model: which ones belong to it, and whether they are sound enough to be loaded."""

from collections.abc import Sequence
from pathlib import Path
from typing import Final, Literal

from ...protocols import ModelError
from ..gguf import check_part, model_parts, read_header
from .index import StoredFile, StoredModel
from .transfer import Progress, sha256_of

_ONNX_CONFIGURATION: Final = "genai_config.json"


def model_format(path: Path) -> Literal["gguf", "onnx"]:
    return "onnx" if path.is_dir() else "gguf"


def model_files(path: Path) -> list[Path]:
    """Return all files of the model at `path`: a GGUF file, all parts of a split one, or the files of an ONNX folder.

    Raises `ModelNotFound` if there are none, or parts are missing, and `ModelError` for a folder that is no ONNX model.
    """
    if path.is_dir():
        if not (path / _ONNX_CONFIGURATION).is_file():
            raise ModelError(f"{path} has no {_ONNX_CONFIGURATION}", hint="give a .gguf file, or a folder for onnxruntime-genai")
        return sorted(file for file in path.rglob("*") if file.is_file())
    return model_parts(path)


def check_model(path: Path) -> None:
    """Look at a model without loading it. Raises `ModelError` with what is wrong with it."""
    if path.is_dir():
        from ..onnx.folder import read_folder

        read_folder(path)
        return
    first, *others = model_parts(path)
    read_header(first)
    for part in others:
        check_part(part)


def store_file(path: Path, progress: Progress) -> StoredFile:
    """Describe the file as it is now, with its checksum."""
    state = path.stat()
    return StoredFile(path=str(path), bytes=state.st_size, modified_ns=state.st_mtime_ns, sha256=sha256_of(path, progress))


def fault_of(model: StoredModel, expected: Sequence[str | None]) -> str:
    """Return the fault of a model whose files should have these checksums, None for unknown ones; empty: the model is sound."""
    for file, checksum in zip(model.files, expected, strict=True):
        if checksum is not None and file.sha256 != checksum:
            return f"{Path(file.path).name} has the SHA-256 {file.sha256}, not {checksum}"
    try:
        check_model(Path(model.path))
    except ModelError as error:
        return error.message
    return ""
