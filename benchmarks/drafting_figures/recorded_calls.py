"""Tool calls that others recorded, by families of tools: tau-bench (airline), API-Bank and BFCL, which the repository does not hold.

Of each family, the calls that differ most are chosen, as SPEED-Bench does (arXiv 2604.09557): the greedy choice that minimises the sum of
the cosine similarities of all pairs, and then every exchange of two calls that lowers it.
"""

import gzip
import json
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from itertools import chain
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray
from pydantic import JsonValue

from nearfar.orchestrator.util.embedding import MiniLmEmbedder
from nearfar.protocols import ToolSpec

KINDS = {str: "string", bool: "boolean", int: "integer", float: "number", list: "array", dict: "object"}
PYTHON_TYPES = {"dict": "object", "float": "number", "tuple": "array"}


class RecordedCall(NamedTuple):
    """A call, and what stood before it."""

    said: list[str]
    tool: str
    arguments: dict[str, JsonValue]
    tools: tuple[ToolSpec, ...]


FAMILIES: Final = {
    "api_bank accounts": r"Token|Account|Balance|Password|RegisterUser|Stock",
    "api_bank health": r"Health|Symptom|Registration|Emergency",
    "api_bank planner": r"Agenda|Reminder|Alarm|Meeting|Timed|Scene",
    "api_bank questions": r"",
    "airline look-ups": r"get_|search_|list_",
    "airline changes": r"update_|book_|cancel_|send_",
    "airline free text": r"",
}
"""The tools of each family of a set, by their names; the first family that matches has the tool. BFCL's own sets are its families."""


def diverse_calls(folder: Path, count: int) -> dict[str, list[RecordedCall]]:
    """Return the calls of each family that differ most, at most so many, one for each prompt.

    The schemas of API-Bank and tau-bench are inferred from their calls; those of BFCL are its own.
    """
    found = {name: list(_bfcl(folder, name)) for name in ("simple_python", "multiple", "parallel", "live_simple")}
    calls = {f"bfcl {name}": calls for name, calls in found.items()}
    for source, recorded in (("api_bank", _api_bank(folder)), ("airline", chain(*_tau(folder)))):
        for call in _inferred(recorded):
            family = next(name for name, tools in FAMILIES.items() if name.startswith(source) and re.search(tools, call.tool))
            calls.setdefault(family, []).append(call)
    embedder = MiniLmEmbedder()
    return {family: _diverse(list({str(call.said): call for call in calls[family]}.values()), count, embedder) for family in sorted(calls)}


def recorded_runs(folder: Path) -> list[list[RecordedCall]]:
    """Return the conversations of tau-bench, each with its calls in order."""
    runs = list(_tau(folder))
    tools = _inferred(chain(*runs))[0].tools
    return [[call._replace(tools=tools) for call in calls] for calls in runs]


_OFFERED: Final = 8
"""Calls of a family of which one is chosen, about: to embed them takes most of the time."""


def _diverse(calls: list[RecordedCall], count: int, embedder: MiniLmEmbedder) -> list[RecordedCall]:
    calls = calls[:: max(len(calls) // (_OFFERED * count), 1)]
    vectors = embedder.embed_all([f"{call.said[-1]} {call.tool} {json.dumps(call.arguments)}" for call in calls])
    return [calls[place] for place in most_different(vectors, count)]


def most_different(vectors: NDArray[np.float32], count: int) -> list[int]:
    """Return the places of so many unit vectors whose pairs have a low sum of cosine similarities."""
    alike = vectors @ vectors.T
    np.fill_diagonal(alike, 0)
    chosen = [int(np.argmin(alike.sum(1)))]
    while len(chosen) < min(count, len(vectors)):
        sums = alike[:, chosen].sum(1)
        sums[chosen] = np.inf
        chosen.append(int(np.argmin(sums)))
    others = [place for place in range(len(vectors)) if place not in chosen]
    while others:
        sums = alike[:, chosen].sum(1)
        gains = sums[chosen][:, None] - sums[others][None, :] + alike[np.ix_(chosen, others)]
        out, into = np.unravel_index(np.argmax(gains), gains.shape)
        if gains[out, into] < _LEAST_GAIN:
            break
        chosen[out], others[into] = others[into], chosen[out]
    return sorted(chosen)


_LEAST_GAIN: Final = 1e-4
"""Of an exchange: smaller ones may be errors of rounding, and would go on for ever."""


def _text(path: Path) -> str:
    return gzip.decompress(path.read_bytes()).decode()


def _api_bank(folder: Path) -> Iterator[RecordedCall]:
    for row in json.loads(_text(folder / "apibank_level1.json.gz")):
        for call in row["answer"]:
            yield RecordedCall([row["user"]], _name(call["name"]), call["parameters"], ())


def _tau(folder: Path) -> Iterator[list[RecordedCall]]:
    """The calls of each conversation."""
    for line in _text(folder / "tau_airline_gpt4o.jsonl.gz").splitlines():
        said: list[str] = []
        calls = []
        for message in json.loads(line)["traj"][1:]:
            for call in message.get("tool_calls") or ():
                calls.append(RecordedCall(list(said), _name(call["function"]["name"]), json.loads(call["function"]["arguments"]), ()))
            said.append(message.get("content") or "-")
        yield calls


def _bfcl(folder: Path, name: str) -> Iterator[RecordedCall]:
    """The first of the answers that count as right."""
    for line in _text(folder / f"bfcl_{name}.jsonl.gz").splitlines():
        row = json.loads(line)
        tools = tuple(ToolSpec(name=_name(each["name"]), parameters=_json_schema(each["parameters"])) for each in row["function"])
        for call in row["ground_truth"]:
            for tool, arguments in call.items():
                yield RecordedCall([message["content"] for message in row["question"][0]], _name(tool), _first(arguments), tools)


def _first(accepted: Any) -> Any:  # noqa: ANN401 - JSON
    """The first accepted value of each parameter; "" stands for one that may be left out."""
    return {key: _plain(values[0]) for key, values in accepted.items() if values and values[0] != ""}


def _plain(value: Any) -> Any:  # noqa: ANN401 - JSON
    if isinstance(value, dict):
        return _first(value)
    return [_plain(each) for each in value] if isinstance(value, list) else value


def _json_schema(schema: Any) -> Any:  # noqa: ANN401 - JSON
    """The set writes Python's names of types."""
    if isinstance(schema, list):
        return [_json_schema(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    kept = {key: _json_schema(value) for key, value in schema.items() if key in ("type", "properties", "items", "required", "enum")}
    if isinstance(schema.get("properties"), dict):
        kept["properties"] = {key: _json_schema(value) for key, value in schema["properties"].items()}
    if isinstance(kept.get("type"), str):
        kept["type"] = PYTHON_TYPES.get(kept["type"], kept["type"])
        if kept["type"] == "any":
            del kept["type"]
    return kept


def _name(name: str) -> str:
    return re.sub(r"[^\w-]", "_", name)[:64]


def _inferred(calls: Iterable[RecordedCall]) -> list[RecordedCall]:
    """With tools whose parameters and types are those that occur; the ones that always occur are required."""
    calls = list(calls)
    seen: defaultdict[str, list[dict[str, JsonValue]]] = defaultdict(list)
    for call in calls:
        seen[call.tool].append(call.arguments)
    tools = tuple(ToolSpec(name=name, parameters=_schema(rows)) for name, rows in seen.items())
    return [call._replace(tools=tools) for call in calls]


def _schema(rows: list[dict[str, JsonValue]]) -> dict[str, JsonValue]:
    properties: dict[str, JsonValue] = {}
    for row in rows:
        for key, value in row.items():
            properties.setdefault(key, {"type": KINDS[type(value)]} if type(value) in KINDS else {})
    required: list[JsonValue] = [key for key in properties if all(key in row for row in rows)]
    return {"type": "object", "properties": properties, "required": required}
