"""The page of devices: this one, the agents, the workers that other devices lend, and how to add one."""

import re
from collections.abc import Iterator
from typing import Final

from ...protocols import ConfigError, DeviceState, InvalidRequest, Unavailable
from ...protocols.address import Pairing, parse_address
from ..agents import AgentHandle
from ..compose.hub import HubConfig, KnownWorker, list_workers, pair_device, serve_command
from ..util.runtime import in_thread
from .html import Html, facts, form_field, join, table, tag, text
from .view import Fragments, Page, PageContent, View, live

_QUIET_ZONE: Final = 4
"""Modules of white around a QR code, as ISO/IEC 18004 requires."""
_NAME: Final = re.compile(r"[A-Za-z][A-Za-z0-9_\-]{0,63}")


async def _show(view: View) -> PageContent:
    return PageContent("Devices", join([live("devices", await _body(view)), _pair_form(view)]), live="/live/devices")


async def _renew(view: View) -> Fragments:
    return {"devices": await _body(view)}


async def _body(view: View) -> Html:
    state = await in_thread(view.console.hybrid.device_state)
    agents = table(
        "Agents that tasks may be given to",
        ("agent", "side", "model", "calls now", "circuit breaker"),
        map(_agent, view.console.hybrid.pool),
    )
    return join([tag("h2", "This device"), facts(_state(state)), tag("h2", "Agents"), agents, tag("h2", "Workers"), await _workers(view)])


def _state(state: DeviceState) -> Iterator[tuple[str, str]]:
    power = "" if state.power_source is None else f", on {state.power_source}"
    yield "battery", f"unknown{power}" if state.battery is None else f"{state.battery:.0%}{power}"
    yield "heat", str(state.thermal or "unknown")
    yield "free memory", "unknown" if state.free_memory_bytes is None else f"{state.free_memory_bytes / 2**30:.1f} GiB"
    yield "network", {True: "offline", False: "online", None: "unknown"}[state.is_offline]


def _agent(handle: AgentHandle) -> tuple[Html | str, ...]:
    objection = handle.health.objection()
    state = "closed" if objection is None else f"{objection.reason}; tried again in {objection.retry_after:.0f} s"
    css = "state good" if objection is None else "state bad"
    model = handle.model or "not opened yet"
    return text(handle.name), str(handle.side), text(model), f"{handle.health.in_flight}", tag("span", text(state), class_=css)


async def _workers(view: View) -> Html:
    hub = view.console.config.hub
    if hub is None:
        return tag("p", "Other devices can lend their models. Add a section ", tag("code", "[hub]"), " to nearfar.toml.", class_="empty")
    try:
        workers = await list_workers(hub.socket)
    except Unavailable:
        begin = tag("code", "nearfar serve hub")
        return tag("p", "No hub runs on this machine. Start one in another terminal: ", begin, class_="empty")
    head = ("worker", "state", "models", "battery", "heat", "free memory", "steps")
    empty = "The hub knows no worker. Pair a device below."
    return table("Devices that lend their models", head, map(_worker, workers), empty=empty)


def _worker(worker: KnownWorker) -> tuple[Html | str, ...]:
    state = "leaving" if worker.is_draining else "attached" if worker.is_attached else "not attached"
    known = dict(_state(worker.state)) if worker.is_attached else {}
    models = ", ".join(f"{card.name}: {card.model} ({card.side})" for card in worker.agents)
    shown = tag("span", state, class_="state good" if worker.is_attached else "state")
    return (
        text(worker.name),
        shown,
        text(models),
        *(known.get(name, "") for name in ("battery", "heat", "free memory")),
        f"{worker.live_steps}",
    )


def _pair_form(view: View) -> Html:
    if view.console.config.hub is None:
        return Html()
    name = tag("input", type="text", name="name", required=True, pattern=_NAME.pattern, placeholder="phone")
    form = view.action("/devices/pair", form_field("Name of the device", name), button="Show its pairing code")
    note = "The code holds a new token: with it, any device can attach under this name. A browser needs none of this: "
    page = tag("code", "nearfar serve hub --web")
    return tag("section", tag("h2", "Pair a device"), tag("p", note, page, " shows a code for a page.", class_="note"), form)


async def _pair(view: View) -> PageContent:
    hub, name = view.console.config.hub, view.asked("name")
    if hub is None:
        raise ConfigError("there is no hub", hint="add a section [hub] to nearfar.toml")
    if not _NAME.fullmatch(name):
        raise InvalidRequest("this is no name for a device", hint="letters, digits, - and _, at most 64, and a letter first")
    return PageContent(f"Pair {name}", _pairing(await in_thread(pair_device, hub, name), hub))


def _pairing(pairing: Pairing, hub: HubConfig) -> Html:
    steps = (
        ("On a phone, in Termux, then scan the code or paste the line", "python -m nearfar.device.thin_worker --pairing-file -"),
        ("On a computer, then paste the line", "nearfar worker attach --pairing-file -"),
        ("On this machine, if the hub does not run yet", serve_command(hub)),
    )
    reached = f"The device reaches this hub at {pairing.address}. The code is shown once: leave the page when you are done."
    return join(
        [
            tag("p", reached),
            *(tag("p", note, class_="problem doubt") for note in _doubts(pairing, hub)),
            tag("div", _qr(pairing.uri), class_="qr"),
            form_field("The line", tag("textarea", text(pairing.uri), readonly=True, rows=3)),
            *(join([tag("h2", title), tag("pre", command)]) for title, command in steps),
        ]
    )


def _doubts(pairing: Pairing, hub: HubConfig) -> Iterator[str]:
    if parse_address(pairing.address).is_local:
        yield "Only this machine can reach that address. Give the hub another one as [hub] address."
    if pairing.name not in hub.workers:
        yield f"Tasks do not use this device yet. Add a section [hub.workers.{pairing.name}] to nearfar.toml."


def _qr(content: str) -> Html:
    try:
        import segno
    except ImportError:
        raise ConfigError("drawing a QR code needs the Python package segno", hint="pip install 'nearfar[hub]'") from None
    code = segno.make(content, error="l", micro=False)
    size = code.symbol_size(border=_QUIET_ZONE)[0]
    dots = "".join(f"M{x} {y}h1v1h-1z" for y, row in enumerate(code.matrix_iter(border=_QUIET_ZONE)) for x, dark in enumerate(row) if dark)
    drawn = tag("path", d=dots)
    return tag("svg", drawn, viewBox=f"0 0 {size} {size}", role="img", aria_label="QR code of the line below", shape_rendering="crispEdges")


DEVICES: Final = Page("/devices", "Devices", _show, {"pair": _pair}, renew=_renew, period=2.0)
