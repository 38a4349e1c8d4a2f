"""Phone numbers: by their form, by the words around, and with the extra `privacy` by the numbering plans of many countries."""

import re
from importlib.util import find_spec
from typing import Final

from .finding import Finding
from .patterns import digits_of, follows, precedes

_NUMBER: Final = re.compile(
    r"(?:(?<![\w@+])(?<!\w[.:/,=-])|(?=\+)(?<![\w@+])|(?<=(?i:tel|fax|sms)[:=.])|(?<=(?i:phone)[:=])|(?<=(?i:callto)[:=])|(?<=wa\.me/))"
    r"(?:\+[ (]?|\()?\d(?:[ .()\u00a0/\t_-]{0,4}+\d){5,16}+(?!\d)(?:[ ,;]{0,2}+(?:x|ext\.?|#)[ .:]?\d{1,6}+)?"
)
_DATE: Final = re.compile(
    r"\(?(?:(?:19|20)\d\d([-/. ])[01]?\d\1[0-3]?\d|[0-3]?\d([-/.])[0-3]?\d\2(?:19|20)?\d\d|(?:19|20)\d\d ?- ?(?:19|20)\d\d)(?!\d|[-/.]\d)"
)
_NAMED: Final = re.compile(
    r"(?i)(?:(?<![a-z])(?:tele|cell|mobile)?+phone(?![a-rt-z])|\btel\b|telef|téléf|(?<![a-z])mobile?(?![a-z])|mobil\w{0,12}nummer|móvil|m[oó]vel"
    r"|portable:|(?<![a-z])cell(?![a-z])|celular|cellulare|handy(?:nummer)?\b|(?<![a-z])fax|hotline"
    r"|whatsapp|\bsms\b|(?<![a-z])(?:fon|mob)\b|\b[tm]\W{0,2}+(?=[0+])|wa\.me/|number.s\b|\bring\b|\bdial"
    r"|puhelin|landline|switchboard|\bdesk:|\boffice:|rufnummer"
    r"|numéro de|номер|тел|電話|电话|手机|携帯)[^\d\n]{0,24}\n?[^\d\n]{0,4}\Z"
)
_SPOKEN_OF: Final = re.compile(
    r"(?i)\b(?:call|calls|called|calling|reach|reached|contact|text|texts|texted|messages?|answering|anrufen|erreich\w{0,4}|appel\w{0,4}"
    r"|(?:my|our|his|her|their|your)\s(?:new\s|old\s|private\s|work\s|home\s|direct\s)?number"
    r"|llam\w{0,4}|chiam\w{0,4}|ligue|lig[ao]r|bellen|ringa?|soita)\b[^\d\n\"':=()\[\]{}]{0,32}\Z"
)
_NAMED_AFTER: Final = re.compile(r"(?i)[\s,;:(\[-]{0,3}(?:office|fax|mobile|cell|phone|tel\b|landline|handy)")
_NORTH_AMERICAN: Final = re.compile(r"\(?[2-9]\d\d[). -]{1,2}[2-9]\d\d[. -]\d{4}")
_GROUPS: Final = re.compile(r"[ ()\u00a0\s_-]|\.[^.]{1,40}\.|/")
_SEVERAL_GROUPS: Final = re.compile(r"\(|\d[ ().\u00a0/_\s-]{1,4}\d{1,17}[ ().\u00a0/_\s-]{1,4}\d")
_BLANK: Final = re.compile(r"[\s_]++")
_TRUNK: Final = re.compile(r"\(?0\d{1,4}\)?\s?[/ -]\s?\d")
"""The beginning of a number within its country, with what is dialled before other places (ITU-T E.123)."""
_LEAST_SPOKEN_OF: Final = 7
_LEAST_ALONE: Final = 9
"""Digits of a number that nothing around calls a phone's. Shorter ones may be anything."""
_MOST: Final = 15
"""Digits of an international number (ITU-T E.164)."""
_LOOKED_UP: Final = 500
"""Numbers of one text that are held against numbering plans, which takes about a millisecond each. For more of them the form is enough."""
_REGIONS: Final = (
    *("US", "GB", "IE", "AU", "NZ", "ZA", "IN", "DE", "AT", "CH", "FR", "BE", "NL", "ES", "PT", "IT", "GR"),
    *("SE", "FI", "PL", "CZ", "HU", "RO", "TR", "JP", "KR", "CN", "BR", "MX", "AR"),
)
"""Countries whose national numbers are recognised without a word around them."""


class PhoneDetector:
    """Finds phone numbers.

    Args:
        numbering_plans: numbers are held against the plans of countries, which takes the extra `privacy`. Without it, what nothing around
            calls a phone number is found only if it is written as in North America.
    """

    def __init__(self, *, numbering_plans: bool) -> None:
        self._numbering_plans = numbering_plans

    def find(self, text: str) -> list[Finding]:
        plans = _Plans() if self._numbering_plans else None
        return [Finding(*match.span(), "phone", match[0]) for match in _NUMBER.finditer(text) if _is_phone(match, plans)]


class _Plans:
    """The numbering plans of many countries, for the numbers of one text."""

    def __init__(self) -> None:
        self._known: dict[str, bool] = {}

    def allow(self, number: str) -> bool:
        """Return whether a number with `+` has a length that its country has."""
        import phonenumbers

        try:
            return phonenumbers.is_possible_number(phonenumbers.parse(_BLANK.sub(" ", number)))
        except phonenumbers.NumberParseException:
            return False

    def have(self, number: str) -> bool:
        """Return whether some country has such a number and writes it in such groups."""
        if number not in self._known:
            self._known[number] = len(self._known) >= _LOOKED_UP or _is_in_a_plan(number)
        return self._known[number]


def _is_in_a_plan(number: str) -> bool:
    from phonenumbers import Leniency, PhoneNumberMatcher

    number = _BLANK.sub(" ", number)
    leniency = Leniency.VALID if _TRUNK.match(number) else Leniency.STRICT_GROUPING
    return any(PhoneNumberMatcher(number, region, leniency=leniency).has_next() for region in _REGIONS)


def _is_phone(match: re.Match[str], plans: _Plans | None) -> bool:
    number = match[0]
    digits = len(digits_of(number))
    if _DATE.match(number):
        return False
    if follows(_NAMED, match) or precedes(_NAMED_AFTER, match):
        return True
    if number.startswith("+"):
        return plans.allow(number) if plans else _LEAST_SPOKEN_OF < digits <= _MOST
    is_grouped = _GROUPS.search(number) is not None
    if follows(_SPOKEN_OF, match) and digits >= _LEAST_SPOKEN_OF:
        return is_grouped or digits > _LEAST_ALONE
    if not (_SEVERAL_GROUPS.search(number) or _TRUNK.match(number)) or not _LEAST_ALONE <= digits <= _MOST:
        return False
    return _NORTH_AMERICAN.fullmatch(number) is not None or (plans is not None and plans.have(number))


def has_numbering_plans() -> bool:
    """Return whether the extra `privacy` is installed."""
    return find_spec("phonenumbers") is not None
