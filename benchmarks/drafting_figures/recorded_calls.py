"""Tool calls that others recorded: tau-bench (airline), API-Bank and BFCL, which the repository does not hold."""

import gzip
import json
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import JsonValue

from nearfar.protocols import ToolSpec

KINDS = {str: "string", bool: "boolean", int: "integer", float: "number", list: "array", dict: "object"}
PYTHON_TYPES = {"dict": "object", "float": "number", "tuple": "array"}


class RecordedCall(NamedTuple):
    """A call, and what stood before it."""

    said: list[str]
    tool: str
    arguments: dict[str, JsonValue]
    tools: tuple[ToolSpec, ...]


def recorded_calls(folder: Path) -> dict[str, list[RecordedCall]]:
    """Each set in its own order. The schemas of API-Bank and tau-bench are inferred from their calls; those of BFCL are its own."""
    return {"api_bank": _inferred(_api_bank(folder)), "tau_airline": _inferred(_tau(folder)), "bfcl": list(_bfcl(folder))}


def _text(path: Path) -> str:
    return gzip.decompress(path.read_bytes()).decode()


def _api_bank(folder: Path) -> Iterator[RecordedCall]:
    for row in json.loads(_text(folder / "apibank_level1.json.gz")):
        for call in row["answer"]:
            yield RecordedCall([row["user"]], _name(call["name"]), call["parameters"], ())


def _tau(folder: Path) -> Iterator[RecordedCall]:
    for line in _text(folder / "tau_airline_gpt4o.jsonl.gz").splitlines():
        said: list[str] = []
        for message in json.loads(line)["traj"][1:]:
            for call in message.get("tool_calls") or ():
                yield RecordedCall(list(said), _name(call["function"]["name"]), json.loads(call["function"]["arguments"]), ())
            said.append(message.get("content") or "-")


def _bfcl(folder: Path) -> Iterator[RecordedCall]:
    """The first of the answers that count as right."""
    for name in ("simple_python", "multiple", "parallel", "live_simple"):
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
