"""What a step over nearfar's gRPC costs, next to a bare grpc.aio server stream with the same payload.

Both servers run in processes of their own, and both are measured in one run, turn by turn, so that the load of the machine
touches them alike.
"""

import argparse
import asyncio
import json
import statistics
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass

import grpc

from nearfar.protocols import Message, ScriptedAgent, Sensitivity, StepRequest
from nearfar.protocols.client import RemoteAgent
from nearfar.protocols.fakes import Reply
from nearfar.protocols.server import serve
from nearfar.protocols.v1 import agent_pb2 as pb
from nearfar.protocols.v1 import agent_pb2_grpc

TEXT = "The capital of France is Paris."
PIECE = "word "
WARM_UP = 200


def answer(request: StepRequest) -> Reply:
    """One text for a short step; as many pieces as the prompt says for a long one."""
    prompt = request.messages[-1].text
    return [PIECE] * int(prompt) if prompt.isdigit() else TEXT


class BareService(agent_pb2_grpc.AgentServiceServicer):
    """The same reply from a handler that does nothing else."""

    async def Step(self, call: pb.StepCall, context: object) -> AsyncIterator[pb.StepEvent]:
        prompt = call.request.messages[-1].text
        for piece in [PIECE] * int(prompt) if prompt.isdigit() else [TEXT]:
            yield pb.StepEvent(text=piece)
        yield pb.StepEvent(
            finished=pb.Finished(reason=pb.FINISH_REASON_STOP, usage=pb.Usage(input_tokens=6, output_tokens=7), model="scripted")
        )


async def serve_ours() -> None:
    """Serve until standard input closes, which it does when the measuring process ends, however it ends."""
    async with serve(ScriptedAgent(answer), "localhost:0") as server:
        await announce_and_wait(server.address)


async def serve_bare() -> None:
    server = grpc.aio.server()
    agent_pb2_grpc.add_AgentServiceServicer_to_server(BareService(), server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    await announce_and_wait(f"127.0.0.1:{port}")
    await server.stop(None)


async def announce_and_wait(address: str) -> None:
    sys.stdout.write(address + "\n")
    sys.stdout.flush()
    await asyncio.to_thread(sys.stdin.read)


@asynccontextmanager
async def server_process(kind: str) -> AsyncIterator[str]:
    """A server in a process of its own; yields its address."""
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(sys.executable, __file__, "--serve", kind, stdin=pipe, stdout=pipe)
    if process.stdin is None or process.stdout is None:
        raise RuntimeError("the server process has no pipes")
    try:
        async with asyncio.timeout(60):
            address = (await process.stdout.readline()).decode().strip()
        yield address
    finally:
        process.stdin.close()
        await process.wait()


async def ours(agent: RemoteAgent, prompt: str) -> int:
    request = StepRequest(messages=(Message.user(prompt),), sensitivity=Sensitivity.PUBLIC)
    return sum([1 async for _ in agent.step(request)])


async def bare(stub: agent_pb2_grpc.AgentServiceStub, prompt: str) -> int:
    request = pb.StepRequest(messages=[pb.Message(role=pb.ROLE_USER, text=prompt)], sensitivity=pb.SENSITIVITY_PUBLIC)
    call = pb.StepCall(idempotency_key="key", request=request)
    return sum([1 async for _ in stub.Step(call)])


Run = Callable[[str], Awaitable[int]]


async def seconds(run: Run, prompt: str) -> float:
    started = time.perf_counter()
    await run(prompt)
    return time.perf_counter() - started


async def measure(runs: dict[str, Run], *, prompt: str, rounds: int) -> dict[str, float]:
    """Median seconds per run, measured in turns."""
    samples: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(rounds):
        for name, run in runs.items():
            samples[name].append(await seconds(run, prompt))
    return {name: statistics.median(values) for name, values in samples.items()}


@dataclass(frozen=True, slots=True)
class Plan:
    """How much to measure. Every pair of servers is a fresh one, as where the system puts a process decides much of its speed."""

    pairs: int
    steps: int
    rounds: int
    events: int


QUICK = Plan(pairs=5, steps=500, rounds=3, events=5_000)
FULL = Plan(pairs=7, steps=1500, rounds=3, events=10_000)


async def measure_pair(plan: Plan) -> tuple[dict[str, float], dict[str, float]]:
    """Median seconds of a step and of a long stream, ours and bare, on one pair of servers."""
    servers = server_process("ours"), server_process("bare")
    async with servers[0] as our_address, servers[1] as bare_address, grpc.aio.insecure_channel(bare_address) as channel:
        agent = await RemoteAgent.connect(our_address)
        stub = agent_pb2_grpc.AgentServiceStub(channel)
        runs: dict[str, Run] = {"ours": lambda prompt: ours(agent, prompt), "bare": lambda prompt: bare(stub, prompt)}
        try:
            await measure(runs, prompt="warm up", rounds=WARM_UP)
            step = await measure(runs, prompt="What is the capital of France?", rounds=plan.steps)
            return step, await measure(runs, prompt=str(plan.events), rounds=plan.rounds)
        finally:
            await agent.aclose()


async def benchmark(plan: Plan) -> dict[str, float | int]:
    pairs = [await measure_pair(plan) for _ in range(plan.pairs)]

    def median_of(figure: Callable[[dict[str, float], dict[str, float]], float]) -> float:
        return statistics.median(figure(step, long) for step, long in pairs)

    return {
        "step_p50_ratio": round(median_of(lambda step, long: step["ours"] / step["bare"]), 3),
        "events_per_s_ratio": round(median_of(lambda step, long: long["bare"] / long["ours"]), 3),
        "step_p50_us": round(median_of(lambda step, long: step["ours"]) * 1e6, 1),
        "bare_step_p50_us": round(median_of(lambda step, long: step["bare"]) * 1e6, 1),
        "events_per_s": round(plan.events / median_of(lambda step, long: long["ours"])),
        "bare_events_per_s": round(plan.events / median_of(lambda step, long: long["bare"])),
        "steps": plan.pairs * plan.steps,
        "events": plan.pairs * plan.rounds * plan.events,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--quick", action="store_true", help="fewer rounds, under 45 s")
    parser.add_argument("--serve", choices=["ours", "bare"], help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        asyncio.run(serve_ours() if options.serve == "ours" else serve_bare())
        return
    figures = asyncio.run(benchmark(QUICK if options.quick else FULL))
    lines = [json.dumps(figures)] if options.json else [f"{name:20} {value}" for name, value in figures.items()]
    sys.stdout.write("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
