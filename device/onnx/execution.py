"""Which execution provider really runs a model: read back from a profile of one pass, since onnxruntime falls back without a word.

Only the worker process imports this module.
"""

import json
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

from ...protocols import Execution, ModelError
from ..worker.sampling import Logits
from .model import Context
from .providers import short_name
from .runtime import first_line

_CPU: Final = "CPUExecutionProvider"
_PROBE: Final = 0
"""The sequence and the token that are used to look."""


def really_running(context: Context, *, layers: int, threads: int, vocabulary: int) -> Execution:
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


def check_adapters(context: Context, paths: Mapping[str, str]) -> None:
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


def _run_probe(context: Context, vocabulary: int) -> None:
    if (size := len(_pass(context))) != vocabulary:
        message = f"the model computes {size} logits for a vocabulary of {vocabulary} tokens"
        raise ModelError(message, hint="its genai_config.json belongs to another model: download the folder again")


def _pass(context: Context) -> Logits:
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
