"""Sessions of onnxruntime for small models: one thread, no busy waiting, and no telemetry."""

import os
from typing import Any

from ....protocols import ConfigError


def session(model: bytes, name: str) -> Any:  # noqa: ANN401 - onnxruntime carries no types
    """Return a session on one thread. `name` is the model's name in errors.

    Raises `ConfigError` if onnxruntime is not installed, or cannot run the model.
    """
    # From 1.29 on, onnxruntime reports to its maker unless it is told not to before it is imported.
    os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
    try:
        import onnxruntime
        from onnxruntime.capi import onnxruntime_pybind11_state as states
    except ImportError as error:
        raise ConfigError("this needs onnxruntime", hint="pip install 'nearfar[router]'") from error
    options = onnxruntime.SessionOptions()
    # Next to a busy llama.cpp, a second thread waits far longer than it computes.
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    # They have no class in common but Exception.
    errors = (states.Fail, states.InvalidArgument, states.InvalidGraph, states.InvalidProtobuf, states.NotImplemented)
    try:
        return onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    except errors as error:
        hint = "it is damaged: train the head, or build the embedder, again"
        raise ConfigError(f"{name} is no ONNX model that can be run: {error}", hint=hint) from error
