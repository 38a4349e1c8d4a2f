"""Notices that a worker process is stopped or frozen, which breaks no socket and raises nothing."""

from typing import Final

import anyio

from ...protocols.heartbeat import Heartbeat, Pulse

BEAT: Final = Heartbeat(interval=1.0, silence_limit=3.0)
"""The interval of a worker's heartbeats, and the silence after which its parent looks at it."""


class Liveness:
    """Tells a worker that stands still from one that is too busy to send its beats.

    A thread of the worker sends them. It needs Python's interpreter lock, which llama.cpp's bindings release and onnxruntime-genai holds
    for a whole pass of the model. So a silent process is looked at before it is given up: one that computes, or waits for a disk and is
    woken by it, is alive.
    """

    def __init__(self, process_id: int, heartbeat: Heartbeat = BEAT) -> None:
        self._process_id = process_id
        self._pulse = Pulse(heartbeat)
        self._look_seconds = heartbeat.interval

    def heard(self) -> None:
        """Take note that something came from the worker."""
        self._pulse.heard()

    async def until_still(self) -> None:
        """Return when the worker has been silent for its heartbeat's limit, and after that did nothing for another interval."""
        while True:
            await self._pulse.run(_listen)
            before = _activity(self._process_id)
            await anyio.sleep(self._look_seconds)
            if self._pulse.is_silent and _activity(self._process_id) == before:
                return
            self._pulse.heard()


async def _listen() -> None:
    """Send nothing: the parent has no beats of its own, since a worker ends with its parent by their pipe."""


def _activity(process_id: int) -> tuple[float, ...] | None:
    """Return numbers that grow while a process runs: seconds of CPU time, and switches of its main thread. None: the process is gone."""
    import psutil

    try:
        process = psutil.Process(process_id)
        return (*process.cpu_times()[:2], *process.num_ctx_switches())
    except psutil.Error:
        return None
