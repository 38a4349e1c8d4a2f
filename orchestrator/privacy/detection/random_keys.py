"""Keys of no documented form: long words of letters and figures that nobody would write, and that are no hash, name or picture."""

import re
from typing import Final

from .patterns import PatternDetector, follows

_WORD: Final = re.compile(r"(?<![\w+/=.#@:%&?-])[A-Za-z0-9](?:[A-Za-z0-9_+/-]|\.(?=\w)|~(?=\w)){22,126}+={0,2}(?![\w+/=@-])")
_CALLED: Final = re.compile(
    r"(?i)(?:sha-?\d{1,3}|md5|hash|digest|checksum|integrity|commit|etag|base64|blob|revision|fingerprint|nonce|build|image|data|"
    r"src|href|import|from|class|version|file|path|trace|span|request|correlation|session[ _-]?name)\W{0,6}\Z"
)
_LOWER: Final = re.compile(r"[a-z]")
_UPPER: Final = re.compile(r"[A-Z]")
_FIGURE: Final = re.compile(r"\d")
_RUN: Final = re.compile(r"[a-z]{7,}|[A-Z]{8,}|[A-Z]?[a-z]{4,}(?:[A-Z][a-z]{3,})+|\d{7,}")
"""Words and numbers, as names of programs are made of."""
_TURNS: Final = re.compile(r"(?<=[a-z])[A-Z0-9]|(?<=[A-Z])[a-z0-9]|(?<=[0-9])[A-Za-z]")
_ADDRESS: Final = re.compile(r"Qm[1-9A-HJ-NP-Za-km-z]{44}")
"""What a file is called by its content on IPFS."""
_PARTED: Final = re.compile(r"[-_/.]")
_MOST_PARTS: Final = 3
_LEAST_OF_EACH: Final = 3
_TURNS_SHARE: Final = 0.38
"""Random letters and figures change their kind at about 0.56 of their places; names and paths at fewer."""


def _is_random(match: re.Match[str]) -> bool:
    word = match[0]
    kinds = [len(kind.findall(word)) for kind in (_LOWER, _UPPER, _FIGURE)]
    if (
        min(kinds) < _LEAST_OF_EACH
        or _ADDRESS.fullmatch(word)
        or _RUN.search(word)
        or len(_PARTED.findall(word)) > _MOST_PARTS + len(word) // 16
    ):
        return False
    return len(_TURNS.findall(word)) >= _TURNS_SHARE * len(word) and not follows(_CALLED, match)


RANDOM_KEY: Final = PatternDetector("key", _WORD, _is_random)
