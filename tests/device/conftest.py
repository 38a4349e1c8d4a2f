"""The shipped near model as a folder for onnxruntime-genai, exported once."""

from pathlib import Path

import pytest
from near_model import NEAR


@pytest.fixture(scope="session")
def near_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """In 8 bits."""
    pytest.importorskip("onnxruntime_genai", reason="running ONNX models needs onnxruntime-genai: pip install 'nearfar[onnx]'")
    pytest.importorskip("torch", reason="exporting models needs torch: pip install 'nearfar[train]'")
    from train.export_onnx import write_folder
    from train.gguf_base import read_base
    from train.onnx_graph import Precision

    folder = tmp_path_factory.mktemp("onnx") / "near"
    write_folder(*read_base(NEAR), folder, name="nearfar-near", precision=Precision.INT8)
    return folder
