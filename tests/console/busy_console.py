"""A console whose stores are filled by tasks that were really served: answers of both sides, a call that waits, a failure, memories."""

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import Final

from console_face import TOKEN, Opened
from pydantic import JsonValue

from nearfar import (
    DeviceState,
    Hybrid,
    MemoryStore,
    NearfarError,
    Prices,
    Records,
    ScriptedAgent,
    Side,
    StepRequest,
    Tier,
    ToolCall,
    Usage,
    tool,
)
from nearfar.orchestrator.compose.config import load_config
from nearfar.orchestrator.compose.hub import HubConfig, accept_workers
from nearfar.orchestrator.compose.policy_file import PolicyFile
from nearfar.orchestrator.console import console_around
from nearfar.orchestrator.console.chat import USER
from nearfar.orchestrator.memory.in_tasks import TaskMemory
from nearfar.orchestrator.routing.outcome_records import RunRecord
from nearfar.orchestrator.serve import serve_hybrid
from nearfar.protocols import PowerSource, Thermal, Unavailable
from nearfar.protocols.attach import Worker
from nearfar.protocols.fakes import Reply
from nearfar.protocols.security import Scope
from nearfar.protocols.token_file import add_token

FILE: Final = """# What the console's tests serve under.
[policy]
strategy = "cascade"
minimum_confidence = 0.7

[policy.auto]
outcomes = "sweep.jsonl"

[policy.router]
log = "router.jsonl"

[policy.limits.day]
dollars = 5.0
tokens = 200000

[policy.limits.user]
tokens = 50000

[[policy.rules]]
name = "billing stays here"
when = { task_class = ["billing"] }
mode = "only_on_device"

[runs]
folder = "runs"

[hub]
address = "127.0.0.1:0"
tokens = "workers.toml"
certificate = "hub.pem"
key = "hub-key.pem"
socket = "hub.sock"

[hub.workers.phone]
trust = "near"
user = "ana"
"""
WAITS: Final = "Wire 40 euros to Marta for the tickets."
_PRICES: Final = Prices(input=Decimal(3), output=Decimal(15), source="made up", as_of=date(2026, 11, 1))
_LONG: Final = 1_000_000
"""Characters of a line without a space."""
_ANSWERS: Final = {
    "capital": "Santiago is the capital of Chile.",
    "train": "The night train to Vienna leaves at 22:14 from platform 7, and arrives at 07:40.",
    "contract": "Clause 9 caps the liability at the fees of the last twelve months; clause 11 excludes lost profits.",
    "lamp": "Unplug the lamp, open the cap with a flat screwdriver, and fit a GU10 bulb of at most 5 watts.",
}


@tool(approval=True)
def wire(amount: int, to: str, note: str) -> str:
    """Send money."""
    return f"sent {amount} euros to {to}: {note}"


@tool(effect="read")
def timetable(to: str) -> str:
    """Look up departures."""
    return f"{to}: 22:14 platform 7, 23:55 platform 2"


def scripted(hostile: str) -> tuple[ScriptedAgent, ScriptedAgent]:
    """Return a near agent that is unsure of what is hard, and a far one that answers all."""

    def of(request: StepRequest) -> tuple[str, list[str]]:
        asked = next(message.text for message in reversed(request.messages) if message.role == "user")
        return asked, [message.tool_result.content for message in request.messages if message.tool_result is not None]

    def near(request: StepRequest) -> Reply:
        asked, results = of(request)
        if "long" in asked:
            return "w" * _LONG
        if "break" in asked:
            return Unavailable("the model does not answer", hint="start it")
        if "Wire" in asked and not results:
            return [ToolCall(id="wire1", name="wire", arguments={"amount": 40, "to": "Marta", "note": "tickets " + hostile})]
        if "train" in asked and not results:
            return [ToolCall(id="look1", name="timetable", arguments={"to": "Vienna"})]
        if results and "train" not in asked:
            return results[-1]
        return _answer(asked) + hostile

    def far(request: StepRequest) -> Reply:
        return _answer(of(request)[0]) + hostile

    return (
        ScriptedAgent(
            near,
            name="near",
            model="qwen3-1.7b-q4" + hostile,
            confidence=0.82,
            prices=_PRICES.model_copy(update={"input": Decimal(), "output": Decimal()}),
        ),
        ScriptedAgent(far, name="far", side=Side.FAR, model="frontier-large", prices=_PRICES, confidence=0.95),
    )


def _answer(asked: str) -> str:
    return next((answer for word, answer in _ANSWERS.items() if word in asked), "It is 42.")


def write_sweep(path: Path, tasks: int = 60) -> None:
    """Write runs of a small sweep, in which more far calls score more and cost more."""
    draw = random.Random(7)
    kinds = {"device": 0.55, "cloud": 0.93, "cascade": 0.86, "pevr/8": 0.78, "eva/8": 0.72}
    costs = {"device": 0.0, "cloud": 0.0042, "cascade": 0.0014, "pevr/8": 0.0011, "eva/8": 0.0009}
    knobs: dict[str, dict[str, JsonValue]] = {
        "device": {"mode": "only_on_device"},
        "cloud": {"mode": "only_in_cloud"},
        "cascade": {"minimum_confidence": 0.7},
    }
    lines = []
    for number in range(tasks):
        for label, share in kinds.items():
            score = float(draw.random() < share)
            lines.append(
                RunRecord(
                    key=f"{label}-{number}",
                    world="search",
                    task=f"t{number}",
                    prompt=f"Find the neighbour of person {number}, {draw.random()}.",
                    tools=("search",),
                    kind="hops",
                    difficulty=1 + number % 3,
                    seed=1,
                    configuration=label,
                    strategy=label.partition("/")[0],
                    knobs=knobs.get(label, {}),
                    near_model="qwen3-1.7b-q4",
                    far_model="frontier-large",
                    answer="x",
                    success=score == 1,
                    score=score,
                    turns=2,
                    near_calls=int(label != "cloud"),
                    far_calls=int(label != "device"),
                    near_usage=Usage(),
                    far_usage=Usage(),
                    dollars=costs[label] * draw.uniform(0.6, 1.4),
                    dollars_source="prices",
                    seconds=draw.uniform(0.4, 1.2) + 200 * costs[label],
                    joules=0.0 if label == "cloud" else draw.uniform(3, 9),
                    joules_source="estimated",
                    peak_kv_bytes=None,
                ).model_dump_json()
            )
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def remember(store: MemoryStore, hostile: str) -> None:
    """Write memories of several tiers and sources, one of them with a history."""
    store.put(("notes", "ana"), "allergy", {"text": "Ana is allergic to nuts." + hostile}, subject="Ana")
    store.put(("notes", "ana"), "seat", {"text": "Ana prefers the window seat."}, subject="Ana", tier=Tier.USER)
    store.supersede(("notes", "ana"), "seat", {"text": "Ana prefers the aisle seat."})
    store.put(("facts",), "wifi", {"text": "The router stands behind the bookshelf; its guest network is for visitors."}, tier=Tier.SHARED)
    store.put(("facts",), "plumber", {"text": "The plumber comes on Thursdays after nine."})


async def serve_tasks(hybrid: Hybrid, hostile: str) -> None:
    """Serve tasks of all kinds to their ends, whatever these are."""
    public = {"sensitivity": "public"}
    for prompt, options in (
        ("What is the capital of Chile?" + hostile, public),
        ("When does the night train to Vienna leave?", public),
        ("Which clauses of this contract limit our liability?", public),
        ("How do I change the bulb of the lamp in the hall?", {}),
        ("Ask the bank about invoice DE89 3704 0044 0532 0130 00 of ana@example.org, please.", public),
        ("Please break.", {"mode": "only_on_device"}),
        (WAITS, {}),
        ("Say something long.", {}),
    ):
        with suppress(NearfarError):
            result = await hybrid.run(prompt, user=USER, **options)  # type: ignore[arg-type]  # checked by `run` itself
            hybrid.report(result, score=1.0)
    session = hybrid.session("weekend", user=USER, sensitivity="public")
    for prompt in ("Which train to Vienna is the last?", "And which clauses of the rental contract matter?"):
        await session.send(prompt)


@asynccontextmanager
async def busy(folder: Path, *, hostile: str = "", sweep: Path | None = None) -> AsyncIterator[Opened]:
    """Serve the console of a `Hybrid` that has served tasks, with a hub that a device is attached to.

    Args:
        hostile: a text that goes into every field that others write
        sweep: runs for the trade-off; None: made ones
    """
    file = folder / "nearfar.toml"
    file.write_text(FILE, encoding="utf-8")
    if sweep is None:
        write_sweep(folder / "sweep.jsonl")
    else:
        (folder / "sweep.jsonl").write_bytes(sweep.read_bytes())
    token = add_token(folder / "workers.toml", "phone", scopes=(Scope.ATTACH,)).token
    config = load_config(file)
    assert config.hub is not None
    near, far = scripted(hostile)
    with MemoryStore.open(folder / "memory.db", user="ana", embedder=None) as store:
        remember(store, hostile)
        async with (
            _hub(config.hub, token),
            Hybrid(
                near=near, far=far, tools=[wire, timetable], policy=PolicyFile(file), memory=TaskMemory(store), records=Records(config.runs)
            ) as hybrid,
            console_around(hybrid, config, config.serve.model_copy(update={"address": "127.0.0.1:0"}), file) as (logins, front),
            serve_hybrid(hybrid, config.serve.model_copy(update={"address": "127.0.0.1:0"}), tokens={"app": TOKEN}, front=front) as server,
        ):
            await serve_tasks(hybrid, hostile)
            yield Opened(server, logins, hybrid)


@asynccontextmanager
async def _hub(config: HubConfig, token: str) -> AsyncIterator[None]:
    """Run a hub without TLS on loopback, and a device that lends its model."""
    state = DeviceState(battery=0.74, power_source=PowerSource.BATTERY, thermal=Thermal.FAIR, free_memory_bytes=3 << 30)
    plain = config.model_copy(update={"certificate": None, "key": None})
    async with accept_workers(plain, insecure=True) as (_, address):
        worker = Worker(
            ScriptedAgent(lambda _: "Hi.", name="phone", model="gemma-3-270m"), address=address, token=token, device_state=lambda: state
        )
        serving = asyncio.create_task(worker.run())
        try:
            yield
        finally:
            serving.cancel()
            with suppress(asyncio.CancelledError):
                await serving
