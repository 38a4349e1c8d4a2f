"""Drafting of recorded tool calls, simulated: no model runs, and what would be chosen is the recorded token.

    python benchmarks/drafting_recorded.py --data FOLDER --json

`FOLDER` holds `tools/` with calls of tau-bench and API-Bank, which the repository does not. For each set, in its own order, and
tokenised as far.gguf does: `tokens_per_forward` is tokens of calls / passes with drafts as long as they can be, `acceptance_length` the
tokens of a run of one source that are right. Schemas are inferred from the calls of the set. `warm` goes through the set a second time.
"""

import argparse
import gzip
import json
import re
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import JsonValue

from nearfar.device.llama.model import Model, Vocabulary, start_backend
from nearfar.device.llama.placement import CPU_ONLY
from nearfar.device.worker.constraints import Grammars
from nearfar.device.worker.drafting import Drafting, Eager
from nearfar.device.worker.generation import ToolSyntax
from nearfar.device.worker.prompt import PromptBuilder
from nearfar.device.worker.scheduler import Scheduler
from nearfar.protocols import Message, StepRequest, ToolChoice, ToolSpec

FAR = Path(__file__).parent.parent / "device" / "models" / "far.gguf"
CONTEXT = 1 << 16
KINDS = {str: "string", bool: "boolean", int: "integer", float: "number", list: "array", dict: "object"}

Said = tuple[list[str], str, dict[str, JsonValue]]
"""What was said before a call, its tool and its arguments."""


class Recording:
    """A batch and a context in which the next token is always the one that was recorded."""

    adapters: Sequence[str] = ()
    cells = capacity = CONTEXT

    def __init__(self, size: int) -> None:
        self._size = size
        self._positions: list[int] = []
        self.script: list[int] = []
        self.batch = self

    @property
    def size(self) -> int:
        return len(self._positions)

    def clear(self) -> None:
        self._positions = []

    def add(self, tokens: Sequence[int], *, position: int, sequence: int, last: bool) -> int:
        del sequence, last
        self._positions += range(position, position + len(tokens))
        return len(self._positions) - 1

    def use_adapter(self, number: int) -> None:
        del number

    def decode(self) -> bool:
        return True

    def logits(self, index: int) -> NDArray[np.float32]:
        chosen = np.zeros(self._size, dtype=np.float32)
        chosen[self.script[self._positions[index] + 1]] = 10
        return chosen

    def forget(self, sequence: int, start: int) -> bool:
        del sequence, start
        return True

    def share(self, source: int, target: int, end: int) -> bool:
        del source, target, end
        return True


def _text(path: Path) -> str:
    return gzip.decompress(path.read_bytes()).decode()


def api_bank(folder: Path) -> Iterator[Said]:
    for row in json.loads(_text(folder / "apibank_level1.json.gz")):
        for call in row["answer"]:
            yield [row["user"]], call["name"], call["parameters"]


def tau(folder: Path) -> Iterator[Said]:
    for line in _text(folder / "tau_airline_gpt4o.jsonl.gz").splitlines():
        said: list[str] = []
        for message in json.loads(line)["traj"][1:]:
            for call in message.get("tool_calls") or ():
                yield list(said), call["function"]["name"], json.loads(call["function"]["arguments"])
            said.append(message.get("content") or "-")


def inferred(calls: Iterable[Said]) -> dict[str, ToolSpec]:
    """Tools with the parameters and types that occur; those that always occur are required."""
    seen: defaultdict[str, list[dict[str, JsonValue]]] = defaultdict(list)
    for _, name, arguments in calls:
        seen[name].append(arguments)
    return {name: ToolSpec(name=re.sub(r"[^\w-]", "_", name)[:64], parameters=_schema(rows)) for name, rows in seen.items()}


def _schema(rows: list[dict[str, JsonValue]]) -> dict[str, JsonValue]:
    properties: dict[str, JsonValue] = {}
    for row in rows:
        for key, value in row.items():
            properties.setdefault(key, {"type": KINDS[type(value)]} if type(value) in KINDS else {})
    required: list[JsonValue] = [key for key in properties if all(key in row for row in rows)]
    return {"type": "object", "properties": properties, "required": required}


class Simulation:
    """The scheduler over recorded calls."""

    def __init__(self, model: Model) -> None:
        self._vocabulary: Vocabulary = model.vocabulary
        self._grammars, self._syntax = Grammars(model.vocabulary), ToolSyntax.of(model.vocabulary)
        self._prompts = PromptBuilder(model, context_tokens=CONTEXT)
        self._recording = Recording(model.vocabulary.size)
        drafting = Drafting(model.vocabulary, tolerance=0.0, payoff=Eager())
        context: Any = self._recording
        self.scheduler = Scheduler(model, context, context_tokens=CONTEXT, parallel=1, drafting=drafting)
        self.tokens = self.passes = self.skipped = 0

    def add(self, said: list[str], tool: ToolSpec, tools: tuple[ToolSpec, ...], arguments: dict[str, JsonValue]) -> None:
        ordered = {key: arguments[key] for key in tool.parameters["properties"] if key in arguments}
        call = self._vocabulary.tokenize_inside(json.dumps({"name": tool.name, "arguments": ordered}, ensure_ascii=False))
        grammar = self._grammars.call(tools)
        if grammar.follow(call) < len(call) or not grammar.complete:
            self.skipped += 1
            return
        messages = tuple(Message.user(text) for text in said)
        request = StepRequest(messages=messages, tools=tools, tool_choice=ToolChoice.REQUIRED, max_output_tokens=2048)
        end = min(self._vocabulary.ends)
        prompt = self._prompts.prompt(request).tokens
        self._recording.script = [*prompt, *self._syntax.opener, *call, *self._syntax.closer, end, end]
        self.scheduler.submit(0, request, None)
        while self.scheduler.busy:
            before = self.scheduler.prefilled_tokens
            self.scheduler.round()
            self.passes += self.scheduler.prefilled_tokens == before
        self.tokens += len(call) + len(self._syntax.closer)


def figures(data: Path) -> dict[str, object]:
    start_backend()
    model = Model(str(FAR), CPU_ONLY)
    result: dict[str, object] = {}
    for name, calls in (("api_bank", list(api_bank(data))), ("tau_airline", list(tau(data)))):
        tools = inferred(calls)
        simulation = Simulation(model)
        for turn in ("cold", "warm"):
            simulation.tokens = simulation.passes = simulation.skipped = 0
            for said, tool, arguments in calls:
                simulation.add(said, tools[tool], tuple(tools.values()), arguments)
            result[f"{name}_{turn}_tokens_per_forward"] = round(simulation.tokens / simulation.passes, 2)
            lengths = {source: round(one["accepted"] / max(one["runs"], 1), 2) for source, one in simulation.scheduler.drafts.items()}
            result[f"{name}_{turn}_acceptance_length"] = lengths
        result[f"{name}_calls"], result[f"{name}_skipped"] = len(calls), simulation.skipped
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    arguments = parser.parse_args()
    sys.stdout.write(json.dumps(figures(arguments.data / "tools"), indent=None if arguments.json else 1) + "\n")


if __name__ == "__main__":
    main()
