"""Contact data: e-mail addresses, addresses of machines, URLs, phone numbers, and postal addresses."""

import re
from importlib.util import find_spec
from ipaddress import AddressValueError, IPv4Address, IPv6Address
from typing import Final

from . import Check, PatternDetector, PrivateFinding, always, any_of, digits_of, follows, precedes

_LABEL: Final = r"[^\W_][\w-]{0,62}+"
_TOP: Final = r"[^\W\d_]{2,24}+"
_SPELLED_DOT: Final = r"(?:\s?[\[({<]\s?(?:dot|\.)\s?[\])}>]\s?|\sdot\s)"
_DOT: Final = rf"(?:\.|{_SPELLED_DOT})"
# An @, or what is written for it. ` at ` is one only with a ` dot ` behind it.
_DOMAIN: Final = re.compile(
    rf"(?i)(?:@|[ \t]@[ \t]|%40|&#64;|&commat;|\s?[\[({{<]\s?(?:at|@)\s?[\])}}>]\s?)(?:{_LABEL}{_DOT}){{1,8}}{_TOP}"
    rf"|\sat\s(?:{_LABEL}{_SPELLED_DOT}){{1,8}}{_TOP}"
)
_LOCAL: Final = re.compile(r"[\w.+%'~-]{1,64}+")
_NOT_FIRST: Final = ".+%'~-"
_AT_HINTS: Final = ("@", "%40", "&#64;", "&commat;", "at")
_IP4: Final = re.compile(r"(?<![\w.])(?:\d{1,3}(?:\.|\[\.\]|\(\.\)| \. )){3}\d{1,3}(?!\w|\.\d)")
_MAC: Final = re.compile(
    r"(?<![\w:.-])(?:[0-9A-Fa-f]{2}([:-]))(?:[0-9A-Fa-f]{2}\1){4}[0-9A-Fa-f]{2}(?![\w:-])|(?<![\w.])(?:[0-9A-Fa-f]{4}\.){2}[0-9A-Fa-f]{4}(?![\w.])"
)
_BRACKETED: Final = re.compile(r"[\[( ]\.[\]) ]")
_IP6: Final = re.compile(r"(?<![\w:.])(?:[0-9A-Fa-f]{0,4}:){2,7}(?:(?:\d{1,3}\.){3}\d{1,3}|[0-9A-Fa-f]{1,4}|)(?![\w:])")
_VERSION: Final = re.compile(r"(?i)(?:\bversion|\brelease|\bv|\bsection|\bclause|\bchapter|§|\brfc \d{1,5},?)[\s:=.-]{0,3}\Z")
_LEAST_GROUPS: Final = 4
"""Least number of groups of an IPv6 address; with fewer, the first one has to have all of its digits."""
_URL: Final = re.compile(r"(?i)(?:(?<![a-z0-9+.-])[a-z][a-z0-9+.-]{1,20}+://|(?<![\w.@-])www\.)[\w\[][^\s<>\"'`{}|\\^\x00]*+")
_URL_TAIL: Final = ".,;:!?*"
_BRACKETS: Final = {")": "(", "]": "["}


class EmailDetector:
    """Finds e-mail addresses, also where `@` and `.` are spelled: it goes back from what follows the name."""

    def find(self, text: str) -> list[PrivateFinding]:
        lower_in_place = text.lower()
        if not any(hint in lower_in_place for hint in _AT_HINTS):
            return []
        return [finding for domain in _DOMAIN.finditer(text) if (finding := self._finding(text, domain)) is not None]

    def _finding(self, text: str, domain: re.Match[str]) -> PrivateFinding | None:
        before = text[max(0, domain.start() - 64) : domain.start()]
        local = _LOCAL.match(before[::-1])
        name = before[len(before) - local.end() :].lstrip(_NOT_FIRST) if local else ""
        if not name:
            return None
        start = domain.start() - len(name)
        return PrivateFinding(start, domain.end(), "email", text[start : domain.end()])


class UrlDetector:
    """Finds URLs with a scheme or `www.`, without the punctuation of the sentence around."""

    def find(self, text: str) -> list[PrivateFinding]:
        if "://" not in text and "www." not in text.lower():
            return []
        urls = ((match.start(), _without_tail(match[0])) for match in _URL.finditer(text))
        return [PrivateFinding(start, start + len(url), "url", url) for start, url in urls]


def _without_tail(url: str) -> str:
    """Return the URL without trailing punctuation. A closing bracket without its opening one belongs to the sentence."""
    surplus = {closing: url.count(closing) - url.count(opening) for closing, opening in _BRACKETS.items()}
    end = len(url)
    while (last := url[end - 1]) in _URL_TAIL or surplus.get(last, 0) > 0:
        surplus[last] = surplus.get(last, 0) - 1
        end -= 1
    return url[:end]


def _is_ip4(match: re.Match[str]) -> bool:
    """Return whether an IPv4 address identifies a machine: it is not loopback, unspecified or reserved, and not named as a version."""
    try:
        address = IPv4Address(_BRACKETED.sub(".", match[0]))
    except AddressValueError:
        return False
    return not (address.is_loopback or address.is_unspecified or address.is_reserved or follows(_VERSION, match))


def _is_mac(match: re.Match[str]) -> bool:
    """Return whether a MAC address identifies a device: no broadcast or zero address, and with a letter: six numbers may be a time."""
    figures = re.sub(r"[:.-]", "", match[0]).lower()
    return len(set(figures)) > 1 and figures != "ffffffffffff" and any(figure in "abcdef" for figure in figures)


def _is_ip6(match: re.Match[str]) -> bool:
    try:
        address = IPv6Address(match[0])
    except AddressValueError:
        return False
    groups = match[0].replace("::", ":").strip(":").split(":")
    is_slice = len(groups) < _LEAST_GROUPS and len(groups[0]) < 4  # as of a list: `1::2`
    has_digit = any(character.isdecimal() for character in match[0])  # `face::bed` is a name in a program
    return has_digit and not (is_slice or address.is_loopback or address.is_unspecified)


EMAIL: Final = EmailDetector()
URL: Final = UrlDetector()
IP4: Final = PatternDetector("ip", _IP4, _is_ip4, hints=".")
MAC: Final = PatternDetector("ip", _MAC, _is_mac, hints=(":", "-", "."))
IP6: Final = PatternDetector("ip", _IP6, _is_ip6, hints=":")


_PHONE: Final = re.compile(
    r"(?:(?<![\w@+])(?<!\w[.:/,=-])|(?=\+)(?<![\w@+])|(?<=(?i:tel|fax|sms)[:=.])|(?<=(?i:phone)[:=])|(?<=(?i:callto)[:=])|(?<=wa\.me/))"
    r"(?:\+[ (]?|\()?\d(?:[ .()\u00a0/\t_-]{0,4}+\d){5,16}+(?!\d)(?:[ ,;]{0,2}+(?:x|ext\.?|#)[ .:]?\d{1,6}+)?"
)
_DATE: Final = re.compile(
    r"\(?(?:(?:19|20)\d\d([-/. ])[01]?\d\1[0-3]?\d|[0-3]?\d([-/.])[0-3]?\d\2(?:19|20)?\d\d|(?:19|20)\d\d ?- ?(?:19|20)\d\d)(?!\d|[-/.]\d)"
)
_PHONE_NAMED: Final = re.compile(
    r"(?i)(?:(?<![a-z])(?>(?:tele|cell|mobile)?)phone(?![a-rt-z])|\btel\b|telef|téléf|(?<![a-z])mobile?(?![a-z])|mobil\w{0,12}nummer|móvil|m[oó]vel"
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
_GROUPED: Final = re.compile(r"[ ()\u00a0\s_-]|\.[^.]{1,40}\.|/")
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

    def find(self, text: str) -> list[PrivateFinding]:
        plans = _Plans() if self._numbering_plans else None
        return [PrivateFinding(*match.span(), "phone", match[0]) for match in _PHONE.finditer(text) if _is_phone(match, plans)]


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
    if follows(_PHONE_NAMED, match) or precedes(_NAMED_AFTER, match):
        return True
    if number.startswith("+"):
        return plans.allow(number) if plans else _LEAST_SPOKEN_OF < digits <= _MOST
    is_grouped = _GROUPED.search(number) is not None
    if follows(_SPOKEN_OF, match) and digits >= _LEAST_SPOKEN_OF:
        return is_grouped or digits > _LEAST_ALONE
    if not (_SEVERAL_GROUPS.search(number) or _TRUNK.match(number)) or not _LEAST_ALONE <= digits <= _MOST:
        return False
    return _NORTH_AMERICAN.fullmatch(number) is not None or (plans is not None and plans.have(number))


def has_numbering_plans() -> bool:
    """Return whether the extra `privacy` is installed."""
    return find_spec("phonenumbers") is not None


_YEAR: Final = re.compile(r"(?:19|20)\d\d")
_ADDRESS_WORDS: Final = re.compile(
    r"(?i)\baddress|\badresse|\blive[sd]? (?:at|on)|\bliving at|\bship(?:ped|ping)? to|\bdeliver\w{0,5}+ to|\bsend (?:it |them )?to|\bresid"
    r"|\bmoved? to|\bwohn|\bhabit|\bvive? en|\bdirecci|\bindirizzo|\bendereço|\badres|\bmora(?:r|mos)? n"
)
_STREET_NAME: Final = r"[^\W\d_][\w.'’-]{0,30}+"
_CAPITAL: Final = r"[A-Z\u00c0-\u00de\u0100-\u017f\u0410-\u042f0-9][\w.'’-]{0,30}+"
_SPACE: Final = r"[ \t]{1,3}+"
_HOUSE: Final = r"\d{1,5}+(?>(?:[ ]?[a-zA-Z](?![\w]))?)(?:[/-]\d{1,4}+[a-zA-Z]?+)?+(?![\w]|[.,:]\d)"

_ENGLISH: Final = (
    "street", "st", "avenue", "ave", "road", "rd", "lane", "ln", "drive", "dr", "boulevard", "blvd", "court", "ct", "place", "pl", "square",
    "sq", "terrace", "close", "crescent", "way", "highway", "hwy", "parkway", "pkwy", "mews", "grove", "gardens", "row", "walk", "hill",
    "circle", "trail", "quay", "wharf", "alley",
)  # fmt: skip
_ENGLISH_STREET: Final = re.compile(
    rf"(?<![\w.,/$€£-])(?>(?:(?:unit|flat|apt\.?|suite)[ ]?)?)\d{{1,5}}+[a-zA-Z]?+,?+{_SPACE}(?:{_CAPITAL}{_SPACE}){{1,4}}?"
    rf"(?i:{any_of(_ENGLISH)})\b"
)
_ENGLISH_LOWER: Final = re.compile(
    rf"(?i)(?<![\w.,/$€£-])\d{{1,5}}+[a-z]?+,?+{_SPACE}(?:{_STREET_NAME}{_SPACE}){{1,3}}?(?:{any_of(_ENGLISH)})\b"
)

_JOINED: Final = (
    "straße", "strasse", "str.", "gasse", "allee", "platz", "weg", "damm", "ufer", "chaussee", "steig", "promenade",
    "straat", "laan", "plein", "gracht", "kade", "dijk", "singel",
    "gatan", "gata", "gaten", "gate", "vägen", "veien", "vegen", "vej", "gade", "katu", "kuja",
)  # fmt: skip
_NO_STREETS: Final = frozenset((
    "arbeitsplatz", "parkplatz", "sitzplatz", "stellplatz", "listenplatz", "tabellenplatz", "speicherplatz", "startplatz", "marktplatz",
    "hinweg", "rückweg", "umweg", "ausweg", "aggregate", "congregate", "corrugate", "delegate", "floodgate", "frigate", "instigate",
    "interrogate", "investigate", "irrigate", "mitigate", "navigate", "propagate", "segregate", "subjugate", "surrogate",
    "tailgate", "watergate",
))  # fmt: skip
"""Words that end like a street's."""
_JOINED_STREET: Final = re.compile(rf"(?i)(?<![\w])[^\W\d_][^\W\d_-]{{1,30}}?-?(?:{any_of(_JOINED)}){_SPACE}{_HOUSE}")
_APART_STREET: Final = re.compile(
    rf"(?<![\w])(?:{_CAPITAL}{_SPACE}){{1,3}}?(?:Straße|Strasse|Str\.|Gasse|Allee|Platz|Weg|Damm|Ufer|Ring|Straat|Laan|Plein|Allé){_SPACE}{_HOUSE}"
)

_FRENCH: Final = re.compile(
    r"(?<![\w.,/-])\d{1,4}(?>(?:[ ]?(?:bis|ter|quater))?),?[ \t]{1,3}+"
    r"(?i:rue|avenue|av\.|boulevard|bd\.?+|bld|allées?+|chemin|impasse|quai|route|cours|square|place|faubourg|passage|ruelle"
    r"|sentier)[ \t]{1,3}+"
    rf"(?:(?:(?:de|du|des|la|le|les|l['’]|d['’]|aux?)[ \t]{{0,3}}+){{1,3}}{_STREET_NAME}|{_CAPITAL})"
)
_FRENCH_BEHIND: Final = re.compile(
    r"(?<![\w])(?i:rue|avenue|av\.|boulevard|bd\.?+|chaussée|chemin|drève|impasse|quai|allée|ruelle|sentier)[ \t]{1,3}+"
    r"(?:(?>(?:(?:de|du|des|la|le|les|aux?)[ \t]{1,3}+|[ld]['’]){1,3})|(?=[A-Z\u00c0-\u00de]))"
    rf"(?:{_STREET_NAME},?+{_SPACE}){{1,4}}?{_HOUSE}"
)
"""Addresses with the number behind the name, as in Belgium, Luxembourg and Switzerland."""
_ROMANCE: Final = re.compile(
    r"(?<![\w])(?:(?i:calle|c/|avenida|avda\.?|avd\.|paseo|pso\.|plaza|pza\.|carrer|carretera|ronda|camino|viale|v\.le|piazza|piazzale|p\.za|corso"
    r"|c\.so|largo|vicolo|strada|rua|travessa|praça|alameda|estrada|rodovia)|Via|VIA|via(?=[ ](?:[A-Z]|del|dei|san)))[ \t]{0,3}+"
    rf"(?:(?:{_CAPITAL}|de|del|della|delle|dei|degli|di|da|do|dos|das|la|las|los|el|e|y|i)[ \t]{{1,3}}+|{_CAPITAL},[ \t]{{1,3}}+){{1,6}}?"
    rf"(?>(?:(?i:n[.ºo°]{{1,3}}+|núm\.|numero|número|nr\.?+)[ ]?)?){_HOUSE}"
)
_SLAVIC: Final = re.compile(
    r"(?i)(?<![\w])(?:ul\.|al\.|pl\.|os\.|ulica|aleja|ulice|улица|ул\.|проспект|просп\.|пр\.|переулок|пер\.|вулиця|вул\.)[ \t]{0,3}+"
    rf"(?:[\w.'’-]{{1,31}}+,?[ \t]{{1,3}}+){{1,4}}?(?>(?:(?:д|дом|буд|č\.p)\.?+[ ]?)?){_HOUSE}"
)
_BOX: Final = re.compile(
    r"(?i)(?<![\w])(?:p\.?+[ ]?o\.?+[ ]?box|post office box|postfach|postbus|postboks|postbox|apartado(?>(?: de correos| postal)?)"
    r"|caixa postal|casella postale|c\.p\.|boîte postale|skr(?:ytka|\.) poczt(?:owa|\.)|postilokero|p\.?o\.?[ ]?b\.)"
    r"[ ]{0,3}+(?>(?:n[.ºo°]{1,3}+|nr\.?+|#)?)[ ]?\d{1,6}\b"
)
_HUNGARIAN: Final = re.compile(rf"(?<![\w]){_CAPITAL}{_SPACE}(?:utca|u\.|tér|út|útja|körút|köz){_SPACE}{_HOUSE}")
_FLAT: Final = re.compile(r"(?i)(?<![\w])(?:apt\.?+|apartment|suite)[ ]{1,2}+#?\d{1,5}\b|(?<![\w])(?:psc|unit) \d{4},? box \d{3,4}\b")
_EAST_ASIAN: Final = re.compile(
    r"〒[ ]?\d{3}-?\d{4}|\d{1,4}(?:丁目|番地)|[路街道巷]\d{1,5}[号號]|[가-힣]{1,10}(?:로|길)[ ]?\d{1,4}(?:번길)?+(?![\d년월일개])"
)
_STATES: Final = "A[KLRZ]|C[AOT]|D[CE]|FL|GA|HI|I[ADLN]|K[SY]|LA|M[ADEINOST]|N[CDEHJMVY]|O[HKR]|P[AR]|RI|S[CD]|T[NX]|UT|V[AT]|W[AIVY]"
_POSTCODE: Final = re.compile(
    rf"(?<![\w])(?:(?:{_STATES})[ ]{{1,2}}\d{{5}}(?:-\d{{4}})?+"
    r"|[A-Z]{1,2}\d[A-Z\d]?[ ]\d[ABD-HJLNP-UW-Z]{2}"
    r"|[ABCEGHJ-NPRSTVXY]\d[ABCEGHJ-NPRSTV-Z][ ]\d[ABCEGHJ-NPRSTV-Z]\d)(?![\w])"
)


def _is_street(match: re.Match[str]) -> bool:
    """Return whether the number before a street's name is no year, as in `the 2008 Wall Street crash`."""
    return _YEAR.match(match[0]) is None or follows(_ADDRESS_WORDS, match)


def _is_said_to_be_one(match: re.Match[str]) -> bool:
    return follows(_ADDRESS_WORDS, match)


def _is_no_other_word(match: re.Match[str]) -> bool:
    """Return whether the word is a street's, and its number no year: `Parkplatz 3` and `Investigate 12` are no streets."""
    word, number = match[0].rsplit(None, 1)
    return word.casefold() not in _NO_STREETS and _YEAR.fullmatch(number) is None


def _is_no_year(match: re.Match[str]) -> bool:
    """Return whether the number behind a street's name is no year."""
    return _YEAR.fullmatch(match[0].rsplit(None, 1)[1]) is None


def _postal(pattern: re.Pattern[str], check: Check | None = None, *hints: str) -> PatternDetector:
    return PatternDetector("address", pattern, always if check is None else check, hints=hints or ("",))


ADDRESSES: Final = (
    _postal(_ENGLISH_STREET, _is_street, *_ENGLISH),
    _postal(_ENGLISH_LOWER, _is_said_to_be_one, *_ENGLISH),
    _postal(_JOINED_STREET, _is_no_other_word, *_JOINED),
    _postal(_APART_STREET, _is_no_other_word, " str", "gasse", "allee", "allé", "platz", " weg", " damm", " ufer", " ring",
            " laan", " plein"),
    _postal(_FRENCH, None, "rue", "aven", "av.", "bd", "bld", "boulevard", "allée", "allee", "chemin", "impasse", "quai", "route",
            "cours ", "square ", "place ", "faubourg", "passage", "ruelle", "sentier"),
    _postal(_FRENCH_BEHIND, _is_no_year, "rue", "aven", "av.", "bd", "boulevard", "chauss", "chemin", "drève", "impasse", "quai", "allée",
            "ruelle", "sentier"),
    _postal(_ROMANCE, None, "calle", "c/", "avenida", "avda", "avd.", "paseo", "pso.", "plaza", "pza.", "carrer", "ronda", "camino",
            "viale", "v.le", "piazza", "p.za", "corso", "c.so", "largo", "vicolo", "strada", "rua", "travessa", "praça", "alameda",
            "estrada", "rodovia", "via "),
    _postal(_SLAVIC, None, "ul.", "al.", "pl.", "os.", "ulic", "aleja", "улиц", "ул.", "просп", "пр.", "пер.", "переул", "вул"),
    _postal(_BOX, None, "box", "postf", "postb", "postil", "apartado", "caixa", "casella", "c.p.", "postale", "poczt", "o.b", "o b", "pob"),
    _postal(_EAST_ASIAN, None, "〒", "丁目", "番地", "号", "號", "로", "길"),
    _postal(_HUNGARIAN, None, " u.", "utca", " tér", " út", "körút", " köz"),
    _postal(_FLAT, None, "apt", "apartment", "suite", " box"),
    _postal(_POSTCODE),
)  # fmt: skip
