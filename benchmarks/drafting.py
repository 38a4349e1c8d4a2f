"""Drafted tool calls against plain decoding: same tokens, fewer passes, less time.

    python benchmarks/drafting.py --json [--quick] [--data FOLDER] [--protocol diverse|throughput]

On the embedded models' own episodes in both worlds, plain and drafted by turns, with as many threads as an agent takes:
`lossless`: share of steps whose events and confidence are the same. Bar: 1.0.
`tokens_per_forward`: output tokens of tool calls / passes behind the prompt, with drafts as long as they can be. Bar: 4 or more.
`tokens_per_forward_chosen`: the same with drafts as long as they pay on this machine, on far.gguf enlarged to 115M parameters.
`speedup_cold`, `speedup_warm`: plain seconds / drafted seconds there, without and with a history of calls. Bars: 1.4 and 1.8.
`worst_speedup`: the lowest of these, near.gguf, far.gguf, free text and four steps at a time. Bar: 0.95 or more.
`drafting_worst_cell`: the lowest speed-up of a family of tools and a number of steps at a time, of calls that others recorded
(drafting_figures/protocol.py); not with `--quick`, nor without the folder that has the calls. Bar: 0.97 or more.
`--protocol` prints that protocol's figures alone, by family.
"""

import argparse
import asyncio
import json
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from nearfar.device.llama.model import start_backend
from nearfar.device.worker.draft_payoff import Eager, Payoff
from nearfar.device.worker.protocol import StepEventKind
from nearfar.device.worker.scheduler import Scheduler, StepEvent
from nearfar.orchestrator.lab.worlds.apps import AppsWorld
from nearfar.orchestrator.lab.worlds.loading import SearchWorld
from nearfar.protocols import Message, StepRequest, ToolCall

# In place of the script's own folder, in which onnx.py would be taken for the library of that name.
sys.path.pop(0)
sys.path.insert(0, str(Path(__file__).parents[1]))
from benchmarks._parts import DATA
from benchmarks.drafting_figures.engine import MODELS, Engine, enlarged
from benchmarks.drafting_figures.protocol import protocol

SEED, TURNS = 5, 10


def run(scheduler: Scheduler, requests: Sequence[StepRequest]) -> list[StepEvent]:
    """Steps that start together, to their end."""
    for number, request in enumerate(requests):
        scheduler.submit(number, request, None)
    happened: list[StepEvent] = []
    while scheduler.busy:
        happened += scheduler.round()
    for _, kind, payload in happened:
        if kind is StepEventKind.FINISHED and isinstance(payload, dict):
            del payload["performance"]
    return happened


def episodes(scheduler: Scheduler, count: int) -> Iterator[StepRequest]:
    """The steps in which a model works on tasks of both worlds."""
    for world in (SearchWorld(), AppsWorld()):
        for task in world.tasks(count, SEED):
            episode = world.reset(task)
            tools = {tool.name: tool for tool in episode.tools}
            messages = [Message.user(task.prompt)]
            for turn in range(TURNS):
                specs = tuple(tool.spec for tool in tools.values())
                request = StepRequest(messages=tuple(messages), tools=specs, max_output_tokens=120)
                happened = run(scheduler, [request])
                yield request
                payloads = [payload for _, kind, payload in happened if kind is StepEventKind.CALL and isinstance(payload, dict)]
                if not payloads:
                    break
                calls = tuple(ToolCall.model_validate({"id": f"{turn}-{place}", **payload}) for place, payload in enumerate(payloads))
                messages.append(Message.assistant("", calls))
                messages += [Message.tool(asyncio.run(tools[call.name].run(call))) for call in calls]
            episode.close()


class Comparison:
    """Plain and drafted decoding of the same steps by turns, prompts left out."""

    def __init__(self, engine: Engine, payoff: Payoff | None = None) -> None:
        self.plain, self.drafted = engine.scheduler(drafts=False), engine.scheduler(drafts=True, payoff=payoff)
        self.seconds = [0.0, 0.0]
        self.steps = self.same = self.tokens = self.passes = 0

    def add(self, requests: Sequence[StepRequest]) -> None:
        order = (0, 1) if self.steps % 2 else (1, 0)
        happened: dict[int, list[StepEvent]] = {}
        for which in order:
            scheduler = (self.plain, self.drafted)[which]
            for request in requests:
                run(scheduler, [request.model_copy(update={"max_output_tokens": 1})])
            before, begin = scheduler.decode_calls, time.perf_counter()
            happened[which] = run(scheduler, requests)
            self.seconds[which] += time.perf_counter() - begin
            if which:
                self.passes += scheduler.decode_calls - before
        outcomes = [sorted(map(str, happened[which])) for which in (0, 1)]
        self.steps += 1
        self.same += outcomes[0] == outcomes[1]
        self.tokens += sum(_output_tokens(event) for event in happened[1])

    @property
    def speedup(self) -> float:
        return self.seconds[0] / self.seconds[1]


def _output_tokens(event: StepEvent) -> int:
    payload = event[2]
    return int(str(payload["output_tokens"])) if event[1] is StepEventKind.FINISHED and isinstance(payload, dict) else 0


def compared(
    engine: Engine,
    requests: Sequence[StepRequest],
    *,
    together: int = 1,
    before: Sequence[StepRequest] = (),
    payoff: Payoff | None = None,
) -> Comparison:
    comparison = Comparison(engine, payoff)
    for request in before:
        run(comparison.drafted, [request])
        run(comparison.plain, [request])
    for at in range(0, len(requests) - together + 1, together):
        comparison.add(requests[at : at + together])
    return comparison


def figures(data: Path, *, quick: bool) -> dict[str, object]:
    """All figures but those of a protocol by family."""
    far, near = Engine(MODELS / "far.gguf"), Engine(MODELS / "near.gguf")
    requests = list(episodes(far.scheduler(drafts=False), 3 if quick else 12))
    calls = [request for request in requests if _calls(far, request)]
    text = [request.model_copy(update={"tools": (), "max_output_tokens": 24}) for request in requests[:: 4 if quick else 2]]
    half = len(calls) // 2
    with tempfile.TemporaryDirectory() as name:
        large = Engine(enlarged(Path(name)))
        cold = compared(large, calls)
        warm = compared(large, calls[half:], before=calls[:half])
        others = {
            "free_text_speedup": compared(large, text),
            "four_at_a_time_speedup": compared(large, calls[:half], together=4),
            "far_speedup": compared(far, calls * (1 if quick else 4)),
            "near_speedup": compared(near, calls * (1 if quick else 4)),
        }
    eager = compared(far, calls, payoff=Eager())
    alone = [cold, warm, eager, others["far_speedup"], others["near_speedup"], others["free_text_speedup"]]
    speedups = {"speedup_cold": cold, "speedup_warm": warm, **others}
    drafts = eager.drafted.drafts.items()
    return {
        "lossless": sum(one.same for one in alone) / sum(one.steps for one in alone),
        "steps_compared": sum(one.steps for one in alone),
        "tokens_per_forward": round(eager.tokens / eager.passes, 2),
        "tokens_per_forward_chosen": round(cold.tokens / cold.passes, 2),
        **{key: round(one.speedup, 3) for key, one in speedups.items()},
        "worst_speedup": round(min(one.speedup for one in speedups.values()), 3),
        "acceptance_length": {source: round(counts["accepted"] / max(counts["runs"], 1), 2) for source, counts in drafts},
        "acceptance_rate": {source: round(counts["accepted"] / counts["drafted"], 2) for source, counts in drafts},
        **({} if quick or not data.is_dir() else protocol("throughput", data, quick=False)),
    }


def _calls(engine: Engine, request: StepRequest) -> bool:
    return any(kind is StepEventKind.CALL for _, kind, _ in run(engine.scheduler(drafts=False), [request]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--data", type=Path, default=DATA / "tools", help="folder with recorded calls")
    parser.add_argument("--protocol", choices=("diverse", "throughput"), help="figures of recorded calls alone")
    parser.add_argument("--quick", action="store_true", help="fewer tasks, under 45 s")
    arguments = parser.parse_args()
    start_backend()
    if arguments.protocol is None:
        result = figures(arguments.data, quick=arguments.quick)
    else:
        result = protocol(arguments.protocol, arguments.data, quick=arguments.quick)
    if arguments.json:
        sys.stdout.write(json.dumps(result) + "\n")
        return
    for name, value in result.items():
        sys.stdout.write(f"{name:28} {value}\n")


if __name__ == "__main__":
    main()
