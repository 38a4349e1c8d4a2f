"""How much private data the detectors find in texts written by hand, with values spelled as people and forms spell them.

The texts in `texts/` were written by another hand than the patterns', who had not read these. Values stand between `[[` and `]]`; escapes
like `\\u002d` stand for characters that would make a made-up key look like a real one to scanners. A value counts as found where a finding
of whatever type overlaps it: the task then stays on the device.
"""

import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

from nearfar.orchestrator.safety.detection.standard import standard_detectors

_FOLDER: Final = Path(__file__).parent / "texts"
_MARK: Final = re.compile(r"\[\[(.*?)\]\]", re.DOTALL)
_ESCAPE: Final = re.compile(r"\\u([0-9a-f]{4})|\\([nt])")
_WHITE: Final = {"n": "\n", "t": "\t"}


class _Private(NamedTuple):
    text: str
    start: int
    end: int
    type: str


def figures(folder: Path, *, quick: bool) -> dict[str, Any]:
    """`pii_tricky`, `keys_alone`: shares that are found. `pii_false_alarms`: the share of harmless texts in which something is found.

    Neither `folder` nor `quick` changes anything.
    """
    values, keys = list(_values("second_private.txt")), list(_values("second_keys.txt"))
    harmless = [text for _, text in _lines("second_harmless.txt")]
    missed = Counter(value.type for value in values if not _is_found(value))
    unknown = Counter(key.type for key in keys if not _is_found(key))
    return {
        "pii_tricky": 1 - missed.total() / len(values),
        "pii_tricky_missed": dict(missed),
        "keys_alone": 1 - unknown.total() / len(keys),
        "keys_alone_missed": dict(unknown),
        "pii_false_alarms": sum(any(finding.type != "url" for finding in standard_detectors().find(text)) for text in harmless)
        / len(harmless),
    }


def _values(name: str) -> Iterator[_Private]:
    """The marked values, each in its text without the marks."""
    for type, line in _lines(name):
        text = _MARK.sub(r"\1", line)
        removed = 0
        for mark in _MARK.finditer(line):
            start = mark.start() - removed
            removed += len(mark[0]) - len(mark[1])
            yield _Private(text, start, start + len(mark[1]), type)


def _lines(name: str) -> Iterator[tuple[str, str]]:
    """The texts, with what stands above them."""
    type = ""
    for line in (_FOLDER / name).read_text(encoding="utf-8").splitlines():
        if line.startswith("# "):
            type = line.removeprefix("# ")
        elif line:
            yield type, _ESCAPE.sub(lambda escape: _WHITE[escape[2]] if escape[2] else chr(int(escape[1], 16)), line)


def _is_found(value: _Private) -> bool:
    return any(value.start < finding.end and finding.start < value.end for finding in standard_detectors().find(value.text))
