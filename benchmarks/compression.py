"""What is left of long conversations when they are made to fit, and whether it is what later turns need.

    python benchmarks/compression.py --json [--quick] [--data FOLDER]

Budgets are 1/2, 1/4 and 1/8 of the conversation's tokens; compared, in the same run, with the last messages that fit and the
first and last ones by turns (compression_figures/methods.py).
`locomo`: evidence and answers of later questions in long chats; `trajectories`: arguments of later tool calls. Only with `--data`.
`worlds`: scores of the shipped models in a window that is too small for their conversations, with and without.
`seconds_per_megabyte`: of chat and of one long JSON result. Bar: well under a second on an idle machine, 1 at most.
"""

import argparse
import asyncio
import json
import random
import sys
import time
from pathlib import Path

from nearfar.orchestrator.compression import compress
from nearfar.protocols import Message, ToolCall, ToolResult

# In place of the script's own folder, in which onnx.py would be taken for the library of that name.
sys.path.pop(0)
sys.path.insert(0, str(Path(__file__).parents[1]))
from benchmarks.compression_figures import locomo, trajectories, worlds

MEGABYTE = 1_000_000
WORDS = ("harbour", "summer", "talked", "boats", "music", "food", "work", "travel", "plans", "family", "weather", "money", "and", "the")


def seconds_per_megabyte() -> dict[str, float]:
    """Of the process's own time."""
    random.seed(1)
    sentences = (f"{' '.join(random.choices(WORDS, k=12))} in {random.choice(['Rome', 'Oslo', 'Lima'])}." for _ in range(12_500))
    talk = [(Message.user if n % 2 else Message.assistant)(f"{n}: {sentence}") for n, sentence in enumerate(sentences)]
    records = json.dumps([{"id": f"item-{n}", "price": n * 7 % 1000, "colour": random.choice(WORDS)} for n in range(18_000)])
    call = ToolCall(id="1", name="list_items", arguments={})
    listed = [Message.assistant("", (call,)), Message.tool(ToolResult(call_id="1", name="list_items", content=records))]
    return {
        "chat": _seconds([*talk, Message.user("Whom did we meet in Rome?")]),
        "json": _seconds([Message.user("What does item-377 cost?"), *listed]),
    }


def _seconds(messages: list[Message]) -> float:
    length = sum(len(message.text) + len(message.tool_result.content if message.tool_result else "") for message in messages)
    started = time.process_time()
    compress(messages, budget=4000)
    return round((time.process_time() - started) * MEGABYTE / length, 3)


def figures(data: Path | None, *, quick: bool) -> dict[str, object]:
    """All figures."""
    recorded: dict[str, object] = {"locomo": None, "trajectories": None}
    if data is not None:
        recorded = {"locomo": locomo.figures(data, quick=quick), "trajectories": trajectories.figures(data, quick=quick)}
    return {**recorded, "worlds": asyncio.run(worlds.figures(quick=quick)), "seconds_per_megabyte": seconds_per_megabyte()}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--quick", action="store_true", help="fewer questions, trajectories and tasks")
    parser.add_argument("--data", type=Path, help="folder of recorded data; without it only what needs none is measured")
    options = parser.parse_args()
    found = figures(options.data, quick=options.quick)
    sys.stdout.write(json.dumps(found, indent=None if options.json else 2) + "\n")
