"""200 damaged ONNX folders: each is a typed error, or works, and this process lives on.

What the look from outside lets through is loaded by a real worker, which may die of it.
"""

import json
import random
import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import anyio
import pytest

pytest.importorskip("llguidance", reason="running models needs llguidance: pip install 'nearfar[onnx]'")
onnx = pytest.importorskip("onnx", reason="making ONNX files needs onnx: pip install 'nearfar[train]'")
from near_model import QUESTION, ask

from nearfar import OnnxAgent
from nearfar.device.onnx.folder import read_folder
from nearfar.protocols import NearfarError, complete

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(300)]

_FOLDERS: Final = 200
_SIDE_BY_SIDE: Final = 2
_SEED: Final = 20261121
_VALUES: Final[tuple[object, ...]] = (None, -1, 0, 1, 7, 2**31, 2**63, 1e300, "", "x", "../x", "/etc/passwd", [], {}, [1], True)
_PATHS: Final = ("../x", "/etc/passwd", "model.onnx", "tokenizer.json", ".", "", "a/../../x", "\\x", "x" * 5000)

Mutation = Callable[[random.Random, Path], None]


def _flip_bits(random_: random.Random, file: Path) -> None:
    data = bytearray(file.read_bytes())
    for _ in range(random_.choice((1, 1, 4, 32))):
        data[random_.randrange(len(data))] ^= 1 << random_.randrange(8)
    file.write_bytes(data)


def _cut(random_: random.Random, file: Path) -> None:
    data = file.read_bytes()
    file.write_bytes(data[: random_.randrange(len(data))])


def _overwrite(random_: random.Random, file: Path) -> None:
    data = bytearray(file.read_bytes())
    at = random_.randrange(len(data))
    junk = random_.choice((bytes(8), b"\xff" * 10, random_.randbytes(16)))
    data[at : at + len(junk)] = junk
    file.write_bytes(data)


def _change_value(random_: random.Random, file: Path) -> None:
    """Put another value into a JSON file, or leave one out."""
    root = json.loads(file.read_text(encoding="utf-8"))
    section, key = random_.choice(list(_places(root)))
    if random_.random() < 0.3:
        del section[key]
    else:
        section[key] = random_.choice(_VALUES)
    file.write_text(json.dumps(root), encoding="utf-8")


def _places(value: Any) -> list[tuple[Any, Any]]:  # noqa: ANN401 - JSON
    """Every container and key in a JSON value; of long lists and objects only the beginning."""
    keys = list(value)[:30] if isinstance(value, dict) else range(min(len(value), 3)) if isinstance(value, list) else ()
    return [place for key in keys for place in ((value, key), *_places(value[key]))]


def _on(name: str, damage: Mutation) -> Mutation:
    return lambda random_, folder: damage(random_, folder / name)


def _damage_structure(random_: random.Random, folder: Path) -> None:
    """Damage what is not weights: those are most of a graph's bytes, and any bytes are valid ones."""
    path = folder / "model.onnx"
    graph = onnx.load(path)
    node = random_.choice(graph.graph.node)
    attributes = [attribute for each in graph.graph.node for attribute in each.attribute]
    tensor = random_.choice(graph.graph.initializer)
    value = random_.choice([*graph.graph.input, *graph.graph.output]).type.tensor_type
    damages: tuple[Callable[[], object], ...] = (
        lambda: node.input.pop() if node.input else None,
        lambda: node.input.append(random_.choice(graph.graph.node).output[0]),
        lambda: graph.graph.node.remove(node),
        lambda: setattr(node, "op_type", random_.choice(("MatMul", "Reshape", "Nothing", "GroupQueryAttention", "If"))),
        lambda: setattr(random_.choice(attributes), "i", random_.choice((-1, 0, 3, 2**31, 2**62))),
        lambda: setattr(tensor, "data_type", random_.randrange(30)),
        lambda: tensor.dims.reverse(),
        lambda: setattr(value, "elem_type", random_.randrange(20)),
        lambda: setattr(value.shape.dim[-1], "dim_value", random_.choice((-1, 0, 5, 2**40))),
        lambda: setattr(graph, "ir_version", random_.choice((0, 2, 999))),
    )
    random_.choice(damages)()
    path.write_bytes(graph.SerializeToString())


def _move_weights(random_: random.Random, folder: Path) -> None:
    """Say that a tensor lies in some other file."""
    path = folder / "model.onnx"
    graph = onnx.load(path)
    tensor = random_.choice(graph.graph.initializer)
    tensor.ClearField("raw_data")
    tensor.data_location = onnx.TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value=random_.choice(_PATHS))
    tensor.external_data.add(key="offset", value=str(random_.choice((-1, 0, 4096, 2**40, 2**64, "x"))))
    if random_.random() < 0.5:
        tensor.external_data.add(key="length", value=str(random_.choice((-1, 0, 4096, 2**63))))
    path.write_bytes(graph.SerializeToString())


_MUTATIONS: Final[tuple[Mutation, ...]] = (
    _on("model.onnx", _flip_bits),
    _on("model.onnx", _cut),
    _on("model.onnx", _overwrite),
    _damage_structure,
    _damage_structure,
    _move_weights,
    _move_weights,
    _on("genai_config.json", _change_value),
    _on("genai_config.json", _change_value),
    _on("genai_config.json", _flip_bits),
    _on("tokenizer.json", _change_value),
    _on("tokenizer.json", _flip_bits),
    _on("tokenizer_config.json", _change_value),
)


async def _outcome(folder: Path) -> str:
    """What becomes of an app that loads a folder and asks it something."""
    try:
        read_folder(folder)
    except NearfarError:
        return "refused at first sight"
    try:
        async with await OnnxAgent.load(folder, parallel=1) as agent:
            await complete(agent, ask(QUESTION, max_output_tokens=3, timeout=10))
    except NearfarError as error:
        return f"refused by the worker: {type(error).__name__}"
    return "works"


async def test_damaged_folders_are_typed_errors_or_work(near_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nearfar.device.worker.process._LOAD_SECONDS", 20.0)
    outcomes: Counter[str] = Counter()
    numbers = iter(range(_FOLDERS))

    async def work_through() -> None:
        for number in numbers:
            folder = shutil.copytree(near_folder, tmp_path / str(number))
            random_ = random.Random(f"{_SEED}/{number}")
            _MUTATIONS[number % len(_MUTATIONS)](random_, folder)
            outcomes[await _outcome(folder)] += 1
            shutil.rmtree(folder)

    async with anyio.create_task_group() as tasks:
        for _ in range(_SIDE_BY_SIDE):
            tasks.start_soon(work_through)
    assert outcomes.total() == _FOLDERS
    # Both halves have work to do, or the damage is not of the kinds that it is meant to be.
    assert outcomes["refused at first sight"] > _FOLDERS / 4, outcomes
    assert outcomes["works"] > _FOLDERS / 20, outcomes
