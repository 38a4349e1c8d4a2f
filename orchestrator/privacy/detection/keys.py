"""Keys and other secrets: by the beginnings that services give to theirs, by their form, and by what they are assigned to."""

import math
import re
from collections import Counter
from typing import Final

from .patterns import PatternDetector

_WORD: Final = r"[A-Za-z0-9]"
_TOKEN: Final = r"[\w-]"
# Beginnings of keys and the least that follows, as the services and their scanning partners document them.
_ISSUED: Final = (
    r"(?:AKIA|ASIA|AROA|AIDA|ABIA|ACCA)[A-Z0-9]{16}",  # Amazon Web Services
    rf"gh[pousr]_{_WORD}{{30,255}}+|github_pat_\w{{40,255}}+",
    rf"gl(?:pat|ptt|dt|rt|cbt|soat)-{_TOKEN}{{20,255}}+",  # GitLab
    rf"xox[abeoprs]-{_TOKEN}{{10,255}}+|xapp-{_TOKEN}{{10,255}}+",  # Slack
    rf"[prs]k_(?:live|test)_{_WORD}{{16,255}}+|whsec_{_WORD}{{24,255}}+",  # Stripe
    rf"sk-{_TOKEN}{{20,255}}+",  # OpenAI, Anthropic, OpenRouter, DeepSeek
    rf"(?:gsk|xai|pplx|tvly|r8|hf|fw|nvapi|csk|jina|lsv2)[_-]{_TOKEN}{{24,255}}+",  # providers of models, and their neighbours
    rf"AIza{_TOKEN}{{35}}|ya29\.{_TOKEN}{{20,255}}+|GOCSPX-{_TOKEN}{{20,64}}+",  # Google
    rf"npm_{_WORD}{{36}}|pypi-{_TOKEN}{{50,255}}+|rubygems_[0-9a-f]{{48}}|dckr_pat_{_TOKEN}{{20,64}}+",  # registries
    rf"SG\.{_TOKEN}{{16,64}}+\.{_TOKEN}{{16,64}}+|key-[0-9a-f]{{32}}|(?:AC|SK)[0-9a-f]{{32}}",  # SendGrid, Mailgun, Twilio
    rf"[0-9]{{8,10}}:AA{_TOKEN}{{33}}",  # Telegram
    rf"do[opr]_v1_[0-9a-f]{{64}}|dapi[0-9a-f]{{32}}|hv[sbr]\.{_TOKEN}{{24,255}}+|dp\.[a-z]{{2,5}}\.{_WORD}{{40,64}}+",  # hosting, vaults
    rf"shp(?:at|ca|pa|ss)_[0-9a-fA-F]{{32}}|sq0[a-z]{{3}}-{_TOKEN}{{22,64}}+",  # Shopify, Square
    rf"glsa_{_TOKEN}{{32,64}}+|NRAK-[A-Z0-9]{{27}}",  # Grafana, New Relic
    rf"lin_api_{_WORD}{{32,64}}+|ntn_{_WORD}{{40,64}}+|ATATT3{_TOKEN}{{50,255}}+|figd_{_TOKEN}{{32,64}}+",  # tools that teams share
    r"AGE-SECRET-KEY-1[0-9A-Z]{58}",
)
_PREFIXED: Final = re.compile(rf"(?<![A-Za-z0-9])(?:{'|'.join(_ISSUED)})")
_JWT: Final = re.compile(rf"(?<!{_TOKEN})eyJ{_TOKEN}{{8,}}+\.eyJ{_TOKEN}{{8,}}+(?:\.{_TOKEN}*+)?")
_PEM: Final = re.compile(
    r"-----BEGIN [A-Z0-9 ]{0,30}PRIVATE KEY(?: BLOCK)?-----(?:[^-]|-(?!----)){0,16384}+(?:-----END [A-Z0-9 ]{0,40}-----)?"
)
_IN_URL: Final = re.compile(r"://[^\s/:@?#]{0,64}+:([^\s/@?#]{1,128})@")
_NAMES: Final = (
    r"(?:api|access|secret|private|account|client|auth|encryption|signing|master|service)[ _-]?(?:key|token|secret)s?"
    r"|[_-]key|secrets?|tokens?|credentials?"
)
_ASSIGNED: Final = re.compile(
    rf"(?i)(?:{_NAMES})(?:[\"']?\s{{0,3}}+(?::=|=>|[:=])\s{{0,3}}+|\s{{1,3}}+(?:is|was)\s{{1,3}}+)(?:(?:bearer|basic)\s)?[\"'`]?([^\s\"'`,;<>\x00]{{12,}}+)"
)
_PASSWORD: Final = re.compile(
    r"(?i)(?:passwor[dt]|passwort|passwd|passphrase|passcode|\bpwd?\b|\bpass"
    r"|contrase[ñn]a|mot de passe|kennwort|senha|wachtwoord|salasana|hasło|lösenord)"
    r"(?:[\"']?\s{0,3}+(?::=|=>|[:=])\s{0,3}+|\s{1,3}+(?:is|was|ist|es|est)\s{1,3}+:?\s?)[\"'`]?([^\s\"'`,;<>\x00]{5,}+)"
)
_PASSWORD_HINTS: Final = ("pass", "pw", "contrase", "kennwort", "senha", "wachtwoord", "salasana", "hasło", "lösenord")
_AUTHORIZATION: Final = re.compile(r"(?i)\b(?:bearer|basic)\s{1,3}+([A-Za-z0-9._~+/=-]{16,}+)")
_REFERENCE: Final = re.compile(r"[$%{(\[*.]|os\.|env\.|process\.|self\.|get\w{0,20}\(|x{4}|\.{3}")
"""How what is assigned begins where it is no secret, but a place where one is found, or one that was crossed out."""
_BITS: Final = 3.0
"""Of entropy per character: words stay below it or have no digits, random letters and digits are above it from about 12 characters on."""


def _is_random(match: re.Match[str]) -> bool:
    """Whether what is assigned looks random: letters and digits, and as many different ones as chance would make."""
    value = match[1]
    has_both = any(character.isdigit() for character in value) and any(character.isalpha() for character in value)
    return has_both and not _REFERENCE.match(value) and entropy(value) >= _BITS


def _is_password(match: re.Match[str]) -> bool:
    """Whether what is assigned is more than a word."""
    value = match[1].rstrip(".!?:)")
    return not value.isalpha() and not _REFERENCE.match(value) and len(set(value)) > 2


def entropy(text: str) -> float:
    """Bits per character, of the characters' own frequencies (Shannon)."""
    shares = [count / len(text) for count in Counter(text).values()]
    return -sum(share * math.log2(share) for share in shares)


KEYS: Final = (
    PatternDetector("key", _PREFIXED),
    PatternDetector("key", _JWT, hints=("eyj",)),
    PatternDetector("key", _PEM, hints=("private key",)),
    PatternDetector("key", _IN_URL, group=1, hints=("://",)),
    PatternDetector("key", _ASSIGNED, _is_random, group=1, hints=("key", "token", "secret", "credential")),
    PatternDetector("key", _PASSWORD, _is_password, group=1, hints=_PASSWORD_HINTS),
    PatternDetector("key", _AUTHORIZATION, _is_random, group=1, hints=("bearer", "basic")),
)
