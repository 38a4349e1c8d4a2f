"""The half of a near agent that is the same for every engine: the agent, its worker process, and what that process decodes and how.

An engine (`llama`, `onnx`) adds a worker module that loads a model and hands it to `serving.serve_parent`, and an agent that starts it.
"""

from .agent import LocalAgent
from .protocol import WorkerStatistics

__all__ = ["LocalAgent", "WorkerStatistics"]
