"""`nearfar worker list`: the devices that lend their models, as this machine's hub knows them."""

from pathlib import Path

from ..compose.hub import HubConfig, KnownWorker, list_workers
from .configuration import read_config
from .console import execute, output, print_json


def show_workers(config: Path | None, *, as_json: bool) -> None:
    """Print what the hub knows of its workers."""

    async def work() -> None:
        loaded = read_config(config)
        hub = (loaded.hub if loaded is not None else None) or HubConfig()
        workers = await list_workers(hub.socket)
        if as_json:
            print_json({"workers": [worker.model_dump(mode="json") for worker in workers]})
            return
        for worker in workers:
            output.print(f"{worker.name:<20} {_described(worker)}", soft_wrap=True)

    execute(work(), as_json=as_json)


def _described(worker: KnownWorker) -> str:
    if not worker.is_attached:
        return "not attached"
    state = worker.state
    power = "" if state.power_source is None else f" ({state.power_source})"
    parts = [
        "leaving" if worker.is_draining else "attached",
        ", ".join(f"{card.name}: {card.model}, {card.side}" for card in worker.agents),
        f"{worker.live_steps} steps",
        "battery unknown" if state.battery is None else f"battery {state.battery:.0%}{power}",
        f"heat {state.thermal or 'unknown'}",
        "free memory unknown" if state.free_memory_bytes is None else f"{state.free_memory_bytes / 2**30:.1f} GiB free",
    ]
    return "; ".join(parts)
