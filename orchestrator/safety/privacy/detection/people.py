"""Social security numbers and dates of birth."""

import re
from datetime import date
from typing import Final

from .patterns import PatternDetector, digits_of, follows, precedes

_SSN: Final = re.compile(
    r"(?<![\w-])(?<!\d[.,:/])\d{3}([ \t]{0,3}+[-_/.,:·|]?[ \t]{0,3}+(?:\r?\n[ \t]{0,3}+)?)\d{2}\1\d{4}(?![\w-]|[.,:/]\d)"
)
_SSN_WORDS: Final = re.compile(
    r"(?i)\bssn|\bs\.s\.n|\bsocial\b|soc\.? ?sec|\bss ?#|\bss no|\btax(?:payer)? id|\bitin\b|\btin\b|seguro social"
)
_SSN_BEHIND: Final = re.compile(r"(?i)[\s,;:(]{0,3}+(?:(?:is|was)\s)?+(?:(?:my|his|her|the|a|an)\s)?+(?:ssn|social security)")
_ADVERTISED: Final = {"078051120", "219099999"}
"""Numbers that were printed in advertisements, and belong to no person."""

_MONTHS: Final = (
    "jan|feb|m[aä]r|mars|apr|avr|abr|ma[iyjg]|jun|juin|giu|jul|juil|lug|aug|ao[uû]|ago|sep|set|o[ck]t|out|ott|nov|de[cksz]|d[ée]c|dic|gen|ene|f[ée]v|hein|"
    "tammi|helmi|maalis|huhti|touko|kes[äa]|elo|syys|loka|marras|joulu"
)
_MONTH: Final = rf"(?>{_MONTHS})[^\W\d_]{{0,9}}+\.?+"
_DATE: Final = re.compile(
    rf"(?i)(?<![\w])(?:\d{{4}}([-/. ])\d{{1,2}}\1\d{{1,2}}|\d{{1,2}}(\s?[-/.]\s?|\s)\d{{1,2}}\2(?:\d{{4}}|\d{{2}})|\d{{8}}"
    rf"|\d{{1,2}}(?:st|nd|rd|th|\.|er|º)?[ -]?(?:of |de |d')?{_MONTH}[ ,-]{{0,2}}(?:de |del )?(?:\d{{4}}|\d{{2}})"
    rf"|{_MONTH} \d{{1,2}}(?:st|nd|rd|th)?,? \d{{4}}"
    r"|\d{4}年\d{1,2}月\d{1,2}日)(?!\d)"
)
_BIRTH: Final = (
    r"birth|\bborn\b|\bb-?day|\bd\.?\s?o\.?\s?b\b|geboren|geburt|geb\.|\bn[ée]e? le\b|\bn[ée]\(e\) le|naissance|naci[dm]"
    r"|\bnat[oa] il|nascita|nascid|nasciment|geboorte|\bf[øö]d[dts]|fødsel|synty[nm]|urodz|narozen"
    r"|született|születés|рожд|родил|出生|生日|生年月日"
)
_BORN: Final = re.compile(rf"(?i)(?:{_BIRTH})[^\d]{{0,24}}\Z")
_WAS_BORN: Final = re.compile(
    rf"(?i)[\s,;:(\[-]{{0,4}}+(?:(?:is|was|ist|war)\s)?+(?:(?:my|his|her|the|mein|sein|ihr)\s)?+(?:date (?:of|de) |fecha de |data d[ie] )?+"
    rf"(?:{_BIRTH})"
)
_BIRTH_HINTS: Final = (
    *(
        "birth",
        "born",
        "b-day",
        "bday",
        "dob",
        "d.o",
        "d. o",
        "gebor",
        "geb.",
        "geburt",
        "né",
        "ne le",
        "nee le",
        "naissance",
        "naci",
        "nato il",
        "nata il",
    ),
    *("nasc", "geboorte", "fød", "föd", "fodt", "fods", "synty", "urodz", "narozen", "szület", "рожд", "родил", "出生", "生日", "生年月日"),
)
_FIRST_YEAR: Final = 1900


def _is_ssn(match: re.Match[str]) -> bool:
    """Return whether a number may have been issued (20 CFR 422.103 and the rules before), and is written or named as an SSN."""
    digits = digits_of(match[0])
    area, group, serial = digits[:3], digits[3:5], digits[5:]
    is_possible = area not in ("000", "666") and area < "900" and group != "00" and serial != "0000" and digits not in _ADVERTISED
    return is_possible and (match[1].strip() == "-" or follows(_SSN_WORDS, match) or precedes(_SSN_BEHIND, match))


def _is_birth_date(match: re.Match[str]) -> bool:
    return (follows(_BORN, match) or precedes(_WAS_BORN, match)) and _may_be_date(match[0])


def _may_be_date(text: str) -> bool:
    """Return whether the date exists. A date with the month in words is accepted as it is."""
    parts = [int(part) for part in re.findall(r"\d+", text)]
    if len(parts) == 1:
        digits = digits_of(text)
        return _is_day(int(digits[:4]), int(digits[4:6]), int(digits[6:])) or _is_day(int(digits[4:]), int(digits[2:4]), int(digits[:2]))
    if len(parts) == 2:
        return 1 <= parts[0] <= 31 and (parts[1] >= _FIRST_YEAR or parts[1] < 100)
    if parts[0] >= 1000:
        return _is_day(*parts)
    year = parts[2] if parts[2] >= 100 else 2000 + parts[2]  # which century does not matter but for the 29th of February
    return _is_day(year, parts[1], parts[0]) or _is_day(year, parts[0], parts[1])


def _is_day(year: int, month: int, day: int) -> bool:
    try:
        return date(year, month, day).year >= _FIRST_YEAR
    except ValueError:
        return False


SSN: Final = PatternDetector("ssn", _SSN, _is_ssn)
BIRTH_DATE: Final = PatternDetector("birth_date", _DATE, _is_birth_date, hints=_BIRTH_HINTS)
