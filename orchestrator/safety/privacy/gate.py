"""Scan texts that are about to leave the device, within a time limit; a text that cannot be scanned in time does not pass."""

from collections.abc import Mapping, Sequence

import anyio

from ...task.policy import PrivacyConfig
from ...util.runtime import run_in_daemon_thread
from .detection.composite import Detectors
from .detection.finding import UNCHECKED, Detector, Finding, resolved
from .seams import Part, joins

Found = Mapping[str, Sequence[Finding]]
"""Findings, by the texts that they are in."""


class Gate:
    """Scans the texts of one run, each of them once."""

    def __init__(self, detector: Detector, policy: PrivacyConfig) -> None:
        self._detector = Detectors([detector], policy.detect)
        self._patience = policy.patience
        self._seen: dict[str, list[Finding]] = {}

    async def look(self, texts: Sequence[str], said: Sequence[str] | None = None, before: Sequence[str] = ()) -> Found:
        """Return the findings in each text that has any, including values that are split between neighbouring texts.

        Args:
            said: the texts that follow each other; None: all texts.
            before: the ends of texts that left earlier in the same conversation. An end that is in one of `said` stands there.
        """
        said = texts if said is None else said
        conversation = [*(end for end in before if not any(text.endswith(end) for text in said)), *said]
        joined = list(joins(conversation))
        wanted = dict.fromkeys((*texts, *(join.text for join in joined)))
        new = [text for text in wanted if text not in self._seen]
        if new:
            self._seen |= await self._looked_through(new)
        found = {text: list(self._seen[text]) for text in (*conversation, *texts) if text in self._seen}
        for join in joined:
            for finding in self._seen[join.text]:
                _add(finding, [(conversation[part.text], part) for part in join.spread(finding)], found)
        return {text: resolved(found[text]) for text in texts if found[text]}

    async def _looked_through(self, texts: Sequence[str]) -> dict[str, list[Finding]]:
        found: dict[str, list[Finding]] = {}

        def look() -> None:
            for text in texts:
                found[text] = self._detector.find(text)

        with anyio.move_on_after(self._patience):
            await run_in_daemon_thread(look)
        return {text: found.get(text, [Finding(0, len(text), UNCHECKED, text)]) for text in texts}


def _add(finding: Finding, places: Sequence[tuple[str, Part]], found: Mapping[str, list[Finding]]) -> None:
    """Put the pieces of a finding into the texts, unless a text alone already has that finding."""
    if any(_is_known(finding.type, part, found.get(text, ())) for text, part in places):
        return
    for text, part in places:
        if text in found:
            found[text].append(Finding(part.start, part.end, finding.type, text[part.start : part.end]))


def _is_known(type: str, part: Part, findings: Sequence[Finding]) -> bool:
    return any(each.type == type and each.start < part.end and part.start < each.end for each in findings)
