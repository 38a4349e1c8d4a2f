"""Postal addresses, told by the words for streets and boxes and by the forms of postal codes.

A town by itself is no address, nor is a street without a number.
"""

import re
from typing import Final

from .patterns import Check, PatternDetector, always, any_of, follows

_YEAR: Final = re.compile(r"(?:19|20)\d\d")
_ADDRESS_WORDS: Final = re.compile(
    r"(?i)\baddress|\badresse|\blive[sd]? (?:at|on)|\bliving at|\bship(?:ped|ping)? to|\bdeliver\w{0,5}+ to|\bsend (?:it |them )?to|\bresid"
    r"|\bmoved? to|\bwohn|\bhabit|\bvive? en|\bdirecci|\bindirizzo|\bendereço|\badres|\bmora(?:r|mos)? n"
)
_NAME: Final = r"[^\W\d_][\w.'’-]{0,30}+"
_CAPITAL: Final = r"[A-Z\u00c0-\u00de\u0100-\u017f\u0410-\u042f0-9][\w.'’-]{0,30}+"
_SPACE: Final = r"[ \t]{1,3}+"
_HOUSE: Final = r"\d{1,5}+(?:[ ]?[a-zA-Z](?![\w]))?+(?:[/-]\d{1,4}+[a-zA-Z]?+)?+(?![\w]|[.,:]\d)"

_ENGLISH: Final = (
    "street", "st", "avenue", "ave", "road", "rd", "lane", "ln", "drive", "dr", "boulevard", "blvd", "court", "ct", "place", "pl", "square",
    "sq", "terrace", "close", "crescent", "way", "highway", "hwy", "parkway", "pkwy", "mews", "grove", "gardens", "row", "walk", "hill",
    "circle", "trail", "quay", "wharf", "alley",
)  # fmt: skip
_ENGLISH_STREET: Final = re.compile(
    rf"(?<![\w.,/$€£-])(?:(?:unit|flat|apt\.?|suite)[ ]?)?+\d{{1,5}}+[a-zA-Z]?+,?+{_SPACE}(?:{_CAPITAL}{_SPACE}){{1,4}}?"
    rf"(?i:{any_of(_ENGLISH)})\b"
)
_ENGLISH_SMALL: Final = re.compile(rf"(?i)(?<![\w.,/$€£-])\d{{1,5}}+[a-z]?+,?+{_SPACE}(?:{_NAME}{_SPACE}){{1,3}}?(?:{any_of(_ENGLISH)})\b")

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
    r"(?<![\w.,/-])\d{1,4}(?:[ ]?(?:bis|ter|quater))?+,?[ \t]{1,3}+"
    r"(?i:rue|avenue|av\.|boulevard|bd\.?+|bld|allées?+|chemin|impasse|quai|route|cours|square|place|faubourg|passage|ruelle"
    r"|sentier)[ \t]{1,3}+"
    rf"(?:(?:(?:de|du|des|la|le|les|l['’]|d['’]|aux?)[ \t]{{0,3}}+){{1,3}}{_NAME}|{_CAPITAL})"
)
_FRENCH_BEHIND: Final = re.compile(
    r"(?<![\w])(?i:rue|avenue|av\.|boulevard|bd\.?+|chaussée|chemin|drève|impasse|quai|allée|ruelle|sentier)[ \t]{1,3}+"
    r"(?:(?:(?:de|du|des|la|le|les|aux?)[ \t]{1,3}+|[ld]['’]){1,3}+|(?=[A-Z\u00c0-\u00de]))"
    rf"(?:{_NAME},?+{_SPACE}){{1,4}}?{_HOUSE}"
)
"""As in Belgium, Luxembourg and Switzerland, where the number stands behind the name."""
_ROMANCE: Final = re.compile(
    r"(?<![\w])(?:(?i:calle|c/|avenida|avda\.?|avd\.|paseo|pso\.|plaza|pza\.|carrer|carretera|ronda|camino|viale|v\.le|piazza|piazzale|p\.za|corso"
    r"|c\.so|largo|vicolo|strada|rua|travessa|praça|alameda|estrada|rodovia)|Via|VIA|via(?=[ ](?:[A-Z]|del|dei|san)))[ \t]{0,3}+"
    rf"(?:(?:{_CAPITAL}|de|del|della|delle|dei|degli|di|da|do|dos|das|la|las|los|el|e|y|i)[ \t]{{1,3}}+|{_CAPITAL},[ \t]{{1,3}}+){{1,6}}?"
    rf"(?:(?i:n[.ºo°]{{1,3}}+|núm\.|numero|número|nr\.?+)[ ]?)?+{_HOUSE}"
)
_SLAVIC: Final = re.compile(
    r"(?i)(?<![\w])(?:ul\.|al\.|pl\.|os\.|ulica|aleja|ulice|улица|ул\.|проспект|просп\.|пр\.|переулок|пер\.|вулиця|вул\.)[ \t]{0,3}+"
    rf"(?:[\w.'’-]{{1,31}}+,?[ \t]{{1,3}}+){{1,4}}?(?:(?:д|дом|буд|č\.p)\.?+[ ]?)?+{_HOUSE}"
)
_BOX: Final = re.compile(
    r"(?i)(?<![\w])(?:p\.?+[ ]?o\.?+[ ]?box|post office box|postfach|postbus|postboks|postbox|apartado(?: de correos| postal)?+"
    r"|caixa postal|casella postale|c\.p\.|boîte postale|skr(?:ytka|\.) poczt(?:owa|\.)|postilokero|p\.?o\.?[ ]?b\.)"
    r"[ ]{0,3}+(?:n[.ºo°]{1,3}+|nr\.?+|#)?+[ ]?\d{1,6}\b"
)
_HUNGARIAN: Final = re.compile(rf"(?<![\w]){_CAPITAL}{_SPACE}(?:utca|u\.|tér|út|útja|körút|köz){_SPACE}{_HOUSE}")
_FLAT: Final = re.compile(r"(?i)(?<![\w])(?:apt\.?+|apartment|suite)[ ]{1,2}+#?\d{1,5}\b|(?<![\w])(?:psc|unit) \d{4},? box \d{3,4}\b")
_EAST_ASIAN: Final = re.compile(
    r"〒[ ]?\d{3}-?\d{4}|\d{1,4}(?:丁目|番地)|[路街道巷]\d{1,5}[号號]|[가-힣]{1,10}(?:로|길)[ ]?\d{1,4}(?:번길)?+(?![\d년월일개])"
)
_STATES: Final = "A[KLRZ]|C[AOT]|D[CE]|FL|GA|HI|I[ADLN]|K[SY]|LA|M[ADEINOST]|N[CDEHJMVY]|O[HKR]|P[AR]|RI|S[CD]|T[NX]|UT|V[AT]|W[AIVY]"
_CODE: Final = re.compile(
    rf"(?<![\w])(?:(?:{_STATES})[ ]{{1,2}}\d{{5}}(?:-\d{{4}})?+"
    r"|[A-Z]{1,2}\d[A-Z\d]?[ ]\d[ABD-HJLNP-UW-Z]{2}"
    r"|[ABCEGHJ-NPRSTVXY]\d[ABCEGHJ-NPRSTV-Z][ ]\d[ABCEGHJ-NPRSTV-Z]\d)(?![\w])"
)


def _is_street(match: re.Match[str]) -> bool:
    """Say whether the number before a street's name is none of a year, as in `the 2008 Wall Street crash`."""
    return _YEAR.match(match[0]) is None or follows(_ADDRESS_WORDS, match)


def _is_said_to_be_one(match: re.Match[str]) -> bool:
    return follows(_ADDRESS_WORDS, match)


def _is_no_other_word(match: re.Match[str]) -> bool:
    """Say whether the word is a street's, and its number no year's: `Parkplatz 3` and `Investigate 12` are none."""
    word, number = match[0].rsplit(None, 1)
    return word.casefold() not in _NO_STREETS and _YEAR.fullmatch(number) is None


def _is_no_year(match: re.Match[str]) -> bool:
    """Say whether the number behind a street's name is none of a year."""
    return _YEAR.fullmatch(match[0].rsplit(None, 1)[1]) is None


def _postal(pattern: re.Pattern[str], check: Check | None = None, *hints: str) -> PatternDetector:
    return PatternDetector("address", pattern, always if check is None else check, hints=hints or ("",))


ADDRESSES: Final = (
    _postal(_ENGLISH_STREET, _is_street, *_ENGLISH),
    _postal(_ENGLISH_SMALL, _is_said_to_be_one, *_ENGLISH),
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
    _postal(_CODE),
)  # fmt: skip
