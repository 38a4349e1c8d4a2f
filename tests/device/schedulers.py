"""Schedulers whose passes do not depend on how busy the machine is."""

from nearfar.device.worker.scheduler import Scheduler


class Steady(Scheduler):
    """Cuts prompts into the same passes every time: how they are cut shows in the last digits of what follows."""

    def _adapt_chunk(self, seconds: float) -> None:
        del seconds


class Slow(Scheduler):
    """Has to keep its passes as short as they may be."""

    def _adapt_chunk(self, seconds: float) -> None:
        del seconds
        self._chunk = 16
