"""Looking through texts that are about to leave the device, within a time limit; what cannot be looked through does not pass."""

from collections.abc import Mapping, Sequence

import anyio

from ..threads import run_in_daemon_thread
from .detection.composite import Detectors
from .detection.finding import UNCHECKED, Detector, Finding
from .settings import PrivacyPolicy

Found = Mapping[str, Sequence[Finding]]
"""Findings, by the texts that they are in."""


class Gate:
    """Of one run: a text that was looked through once is not looked through again."""

    def __init__(self, detector: Detector, policy: PrivacyPolicy) -> None:
        self._detector = Detectors([detector], policy.detect)
        self._patience = policy.patience
        self._seen: dict[str, list[Finding]] = {}

    async def look(self, texts: Sequence[str]) -> Found:
        """The findings that count in each text that has any."""
        new = [text for text in dict.fromkeys(texts) if text not in self._seen]
        if new:
            self._seen |= await self._looked_through(new)
        return {text: self._seen[text] for text in texts if self._seen[text]}

    async def _looked_through(self, texts: Sequence[str]) -> dict[str, list[Finding]]:
        found: dict[str, list[Finding]] = {}

        def look() -> None:
            for text in texts:
                found[text] = self._detector.find(text)

        with anyio.move_on_after(self._patience):
            await run_in_daemon_thread(look)
        return {text: found.get(text, [Finding(0, len(text), UNCHECKED, text)]) for text in texts}
