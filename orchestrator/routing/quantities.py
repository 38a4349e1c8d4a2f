"""Numbers, quantities with units, dates and truth values in canonical forms. Every repetition in a pattern is bounded."""

import re
import unicodedata
from dataclasses import dataclass
from datetime import date
from fractions import Fraction
from typing import Final

LONGEST: Final = 120
"""Characters of a text up to which it may be a quantity or a date."""
UNSIGNED: Final = (
    r"(?:\d{1,3}(?:,\d{3}){1,19}(?:\.\d{1,30})?|\d{1,3}(?:\.\d{3}){2,9}(?:,\d{1,30})?|\d{1,3}(?:\.\d{3}){1,9},\d{1,30}"
    r"|\d{1,3}(?:[ \u00a0\u2009\u202f'_]\d{3}){1,19}(?:[.,]\d{1,30})?|\d{1,60}(?:\.\d{0,30})?|\.\d{1,30})"
)
"""A number with or without separators between thousands, in the English, the German and the SI style. 1.234 alone is read as a decimal."""
_EXPONENT: Final = r"(?:e([-+]?\d{1,3})|\s{0,2}[*x×]\s{0,2}10\^\{?([-+]?\d{1,3})\}?)?"
_RATIO: Final = re.compile(rf"([-+]?)\s{{0,2}}(?:(\d{{1,9}})\s{{1,2}})?({UNSIGNED})\s{{0,2}}/\s{{0,2}}({UNSIGNED})")
_DECIMAL: Final = re.compile(rf"([-+]?)\s{{0,2}}({UNSIGNED}){_EXPONENT}", re.IGNORECASE)
_DECIMAL_COMMA: Final = re.compile(r"([-+]?)\s{0,2}(\d{1,30},(?:\d{1,2}|\d{4,30}))")
_SPLIT: Final = re.compile(
    r"([-+]?\s{0,2}[\d.,][\d.,'_ \u00a0\u2009\u202f/]{0,60}(?:e[-+]?\d{1,3}|\s{0,2}[*x×]\s{0,2}10\^\{?[-+]?\d{1,3}\}?)?)(.{0,60})"
)
_RAISED: Final = re.compile("[\u00b2\u00b3\u00b9\u2070\u2074-\u2079\u207b]{1,20}")
_DECADE: Final = re.compile(r"\d{3}0'?s")
_VULGAR: Final = re.compile("[\u00bc-\u00be\u2150-\u215e]")
_SIGNS: Final = {0x2212: "-", 0x2013: "-", 0x2044: "/"}
_AROUND: Final = " \t\r\n;:!\"'`*"
_HEDGE: Final = re.compile(
    r"(?:approximately|approx\.?|exactly|about|roughly|around|circa|ca\.|[~≈]|(?:in|on|at)(?=\s{1,3}[\dA-Z]))\s{0,3}", re.IGNORECASE
)
_NAME: Final = re.compile(r"0\d{2,60}|\d{3}0s")
"""A code such as 01234, which 1234 is not, and a decade."""
_MINUS: Final = re.compile(r"(?:minus|negative)\s{1,2}(?=[\d.$€£¥₹])", re.IGNORECASE)
_CURRENCIES: Final = {"$": "USD", "€": "EUR", "£": "GBP", "¥": "JPY", "₹": "INR"}
_SCALES: Final = {
    "thousand": 10**3,
    "million": 10**6,
    "millions": 10**6,
    "billion": 10**9,
    "billions": 10**9,
    "trillion": 10**12,
    "mio": 10**6,
}
_UNIT_TABLE: Final = """
m 1 m meter meters metre metres
m 1000 km kilometer kilometers kilometre kilometres Km KM
m 1/100 cm centimeter centimeters centimetre centimetres
m 1/1000 mm millimeter millimeters millimetre millimetres
m 1/1000000 µm μm um micrometer micrometers micron microns
m 1/1000000000 nm nanometer nanometers
m 1609.344 mi mile miles
m 0.3048 ft foot feet
m 0.0254 in inch inches
m 0.9144 yd yard yards
g 1 g gram grams gramme grammes
g 1000 kg kilogram kilograms kilo kilos Kg KG
g 1/1000 mg milligram milligrams
g 1000000 t tonne tonnes
g 453.59237 lb lbs pound pounds
g 28.349523125 oz ounce ounces
s 1 s sec secs second seconds sekunde sekunden seconde secondes segundo segundos
s 1/1000 ms millisecond milliseconds
s 60 min mins minute minutes minuten minuto minutos
s 3600 h hr hrs hour hours stunde stunden heure heures hora horas
s 86400 d day days tag tage jour jours día días
s 604800 wk week weeks woche wochen
month 1 month months monat monate mois mes meses
month 12 yr yrs year years jahr jahre an ans año años
l 1 l L liter liters litre litres
l 1/1000 ml mL milliliter milliliters millilitre millilitres cm^3 cm3
l 1000 m^3 m3 cubic_meter cubic_meters
m2 1 m^2 m2 sqm square_meter square_meters square_metre square_metres
m2 1/10000 cm^2 cm2 square_centimeter square_centimeters
m2 1000000 km^2 km2 square_kilometer square_kilometers
m2 10000 ha hectare hectares
m/s 1 m/s mps meters_per_second metres_per_second
m/s 5/18 km/h kmh kph kilometers_per_hour kilometres_per_hour
m/s 0.44704 mph miles_per_hour
°C 1 °C degrees_celsius celsius C
°F 1 °F degrees_fahrenheit fahrenheit F
K 1 K kelvin
° 1 ° deg degree degrees grad
rad 1 rad radian radians
B 1 B byte bytes
B 1000 kB KB kilobyte kilobytes
B 1000000 MB megabyte megabytes
B 1000000000 GB gigabyte gigabytes
B 1000000000000 TB terabyte terabytes
B 1024 KiB
B 1048576 MiB
B 1073741824 GiB
J 1 J joule joules
J 1000 kJ kilojoule kilojoules
J 3600 Wh
J 3600000 kWh kilowatt-hour kilowatt-hours
W 1 W watt watts
W 1000 kW kilowatt kilowatts
W 1000000 MW megawatt megawatts
USD 1 USD dollar dollars
USD 1/100 cent cents ¢
EUR 1 EUR euro euros
GBP 1 GBP
JPY 1 JPY yen
 1/100 % percent per_cent prozent pourcent
"""
_WORDS: Final = """
zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen eighteen nineteen twenty
"""
NUMBER_WORDS: Final = {word: Fraction(value) for value, word in enumerate(_WORDS.split())}
_NOUN: Final = re.compile(r"[^\W\d_]{3,30}(?:[ -][^\W\d_]{2,30}){0,2}")
_GROUP: Final = 4
"""Characters of a separator and the three digits behind it."""
_GENERAL: Final = ("different", "distinct", "possible", "such", "unique", "total", "valid")
"""Adjectives that make no difference to a thing that is counted."""
_TRUTH: Final = {
    **dict.fromkeys(("yes", "true", "correct", "ja", "oui", "sí", "si", "wahr", "vrai", "verdadero"), "yes"),
    **dict.fromkeys(("no", "false", "incorrect", "nein", "non", "falsch", "faux", "falso"), "no"),
}


def _read_units() -> dict[str, tuple[str, Fraction]]:
    units = {}
    for line in _UNIT_TABLE.strip("\n").split("\n"):
        base, factor, *names = line.split(" ")
        units.update(dict.fromkeys((name.replace("_", " ") for name in names), (base, Fraction(factor))))
    return units


UNITS: Final = _read_units()
"""By name: the unit that it is converted to, and the factor. A percentage is a number without a unit."""


@dataclass(frozen=True, slots=True)
class Quantity:
    """A number in base units, and the number as it was written."""

    value: Fraction
    unit: str
    """The base unit, or the noun that is counted; empty: a bare number."""
    stated: Fraction

    @property
    def form(self) -> str:
        """The canonical text."""
        return f"{self.value} {self.unit}" if self.unit else str(self.value)


def quantity_of(text: str) -> Quantity | None:
    """Parse a whole text as a number, with or without a unit, a currency or a noun that is counted; None if it is something else."""
    plain = _plain(text)
    if plain is None or _NAME.fullmatch(plain):
        return None
    if plain.casefold() in NUMBER_WORDS:
        return Quantity(NUMBER_WORDS[plain.casefold()], "", NUMBER_WORDS[plain.casefold()])
    for sign, unit in _CURRENCIES.items():
        if sign in plain:
            return _priced(plain.replace(sign, "", 1).strip(), unit)
    return _measured(plain)


def number_of(text: str) -> float | None:
    """Parse a text as a number, with separators between thousands, or a dollar or percent sign; None if it is none."""
    found = text.strip().strip("$%").strip()
    value = fraction_of(found) if len(found) <= LONGEST and "/" not in found else None
    return None if value is None else float(value)


def fraction_of(text: str) -> Fraction | None:
    """Parse a number, a ratio or a mixed number exactly; None if the text is none."""
    ratio = _RATIO.fullmatch(text)
    if ratio is not None:
        sign, whole, above, below = ratio.groups()
        divisor = _unsigned(below)
        if not divisor:
            return None
        return _signed(sign, Fraction(whole or 0) + _unsigned(above) / divisor)
    decimal = _DECIMAL.fullmatch(text)
    if decimal is None:
        return None
    sign, digits, short, long = decimal.groups()
    return _signed(sign, _unsigned(digits) * _power(int(short or long or 0)))


def date_of(text: str) -> str | None:
    """Return a date as 2024-03-05 or 2024-03, a time of day as 15:05, or both; None if the text is none, or can be read in two ways."""
    plain = _plain(text)
    if plain is None:
        return None
    both = _DATE_AND_TIME.fullmatch(plain)
    day, hour = (None, None) if both is None else (_day(both[1]), _time(both[2]))
    return f"{day} {hour}" if day and hour else _day(plain) or _time(plain)


def truth_of(text: str) -> str | None:
    """Return `yes` or `no` for a text that says no more than that, in several languages."""
    return _TRUTH.get(text.strip(" \t\r\n.,;:!\"'`*").casefold()) if len(text) <= LONGEST else None


def composed(text: str) -> str:
    """Return a text with one code for each character (NFKC), and with raised digits as exponents: 10² is 10^2, and not 102."""
    return unicodedata.normalize("NFKC", _RAISED.sub(lambda found: f"^{found[0]}", text))


def _plain(text: str) -> str | None:
    if not 0 < len(text) <= LONGEST:
        return None
    spread = _VULGAR.sub(lambda found: f" {found[0]}", text)  # 1½ is 1 1/2, and not 11/2
    plain = composed(spread).translate(_SIGNS).strip(_AROUND).removesuffix(".")
    plain = _HEDGE.sub("", plain, count=1).strip() if _HEDGE.match(plain) else plain.strip()
    return _MINUS.sub("-", plain, count=1) if _MINUS.match(plain) else plain


def _unsigned(digits: str) -> Fraction:
    plain = re.sub(r"[ \u00a0\u2009\u202f'_]", "", digits)
    last = max(plain.rfind("."), plain.rfind(","))
    is_comma_last = plain.count(",") == 1 and plain[last] == ","
    if plain.count(".") > 1 or (is_comma_last and ("." in plain or len(plain) - last != _GROUP or plain != digits)):
        plain = plain.replace(".", "").replace(",", ".")  # points between thousands, a comma before decimals
    return Fraction(plain.replace(",", "").rstrip(".") or 0)


def _power(exponent: int) -> Fraction:
    return Fraction(10**exponent) if exponent >= 0 else Fraction(1, 10**-exponent)


def _signed(sign: str, value: Fraction) -> Fraction:
    return -value if sign == "-" else value


def _priced(text: str, unit: str) -> Quantity | None:
    words = text.split(" ")
    scale = _SCALES.get(words[-1].casefold(), 1)
    number = " ".join(words[:-1]) if scale != 1 else text
    comma = _DECIMAL_COMMA.fullmatch(number)
    value = fraction_of(number) if comma is None else _signed(comma[1], _unsigned(comma[2]))
    return None if value is None else Quantity(value * scale, unit, value * scale)


def _measured(text: str) -> Quantity | None:
    whole = fraction_of(text)
    if whole is not None:
        return Quantity(whole, "", whole)
    found = _SPLIT.fullmatch(text)
    if found is None or _DECADE.fullmatch(text):
        return None
    number, rest = found[1].strip(), found[2].strip()
    comma = _DECIMAL_COMMA.fullmatch(number)
    value = fraction_of(number) if comma is None else _signed(comma[1], _unsigned(comma[2]))
    if value is None or not rest:
        return None
    first, _, behind = rest.partition(" ")
    if first.casefold() in _SCALES:
        value, rest = value * _SCALES[first.casefold()], behind.strip()
    return _with_unit(value, rest) or _compound(value, rest)


def _with_unit(value: Fraction, unit: str) -> Quantity | None:
    if not unit:
        return Quantity(value, "", value)
    base = UNITS.get(unit) or (UNITS.get(unit.casefold()) if len(unit) > 2 else None)
    if base is not None:
        return Quantity(value * base[1], base[0], value)
    noun = " ".join(word for word in unit.casefold().split() if word not in _GENERAL)
    return Quantity(value, noun.removesuffix("s"), value) if _NOUN.fullmatch(noun) and noun not in UNITS else None


def _compound(value: Fraction, rest: str) -> Quantity | None:
    """Parse 1 h 30 min: units of one dimension, each smaller than the one before."""
    unit, _, behind = rest.replace(" and ", " ").replace(", ", " ").partition(" ")
    base, following = UNITS.get(unit), _SPLIT.fullmatch(behind.strip())
    if base is None or following is None or following[1].strip().startswith(("-", "+")):
        return None
    smaller = _measured(behind.strip())
    if smaller is None or smaller.unit != base[0] or not 0 <= smaller.value < base[1] * max(value, Fraction(1)) or not smaller.unit:
        return None
    return Quantity(value * base[1] + smaller.value, base[0], value * base[1] + smaller.value)


_MONTHS: Final = {
    name: number
    for number, names in enumerate(
        (
            "january jan januar janvier enero",
            "february feb februar février febrero",
            "march mar märz mars marzo",
            "april apr avril abril",
            "may mai mayo",
            "june jun juni juin junio",
            "july jul juli juillet julio",
            "august aug août agosto",
            "september sep sept septembre septiembre",
            "october oct oktober okt octobre octubre",
            "november nov novembre noviembre",
            "december dec dezember dez décembre diciembre",
        ),
        start=1,
    )
    for name in names.split()
}
_MONTH: Final = "(" + "|".join(sorted(_MONTHS, key=len, reverse=True)) + r")\.?"
_OF: Final = r"(?:\s{1,3}(?:of|de)\s{1,3}|\s{1,3})"
_ISO: Final = re.compile(r"(\d{4})[-/](\d{1,2})[-/](\d{1,2})")
_MONTH_FIRST: Final = re.compile(rf"{_MONTH}\s{{1,3}}(\d{{1,2}})(?:st|nd|rd|th)?,?\s{{1,3}}(\d{{4}})", re.IGNORECASE)
_DAY_FIRST: Final = re.compile(rf"(?:the\s)?(\d{{1,2}})(?:st|nd|rd|th|\.|er)?{_OF}{_MONTH},?{_OF}(\d{{4}})", re.IGNORECASE)
_MONTH_ALONE: Final = re.compile(rf"{_MONTH},?{_OF}(\d{{4}})", re.IGNORECASE)
_POINTS: Final = re.compile(r"(\d{1,2})\.\s?(\d{1,2})\.\s?(\d{4})")
_SLASHES: Final = re.compile(r"(\d{1,2})[/-](\d{1,2})[/-](\d{4})")
_TIME: Final = re.compile(r"(\d{1,2})(?::(\d{2}))?\s{0,2}([ap]\.?m\.?)|(\d{1,2}):(\d{2})(?:\s{0,2}(?:uhr|h))?", re.IGNORECASE)
_DATE_AND_TIME: Final = re.compile(
    r"(.{6,40}?)(?:T|,?\s{1,3}(?:(?:at|um|à)\s{1,3})?)(\d{1,2}(?::\d{2})?\s{0,2}(?:[ap]\.?m\.?|uhr|h)?)", re.IGNORECASE
)
_DAYS: Final = re.compile(r"(?:mon|tues|wednes|thurs|fri|satur|sun)day,?\s{1,3}", re.IGNORECASE)


def _day(text: str) -> str | None:
    return _written_date(text) or _numeric_date(text)


def _written_date(text: str) -> str | None:
    text = _DAYS.sub("", text, count=1)
    first = _MONTH_FIRST.fullmatch(text)
    if first is not None:
        return _iso(int(first[3]), _MONTHS[first[1].casefold()], int(first[2]))
    day = _DAY_FIRST.fullmatch(text)
    if day is not None:
        return _iso(int(day[3]), _MONTHS[day[2].casefold()], int(day[1]))
    alone = _MONTH_ALONE.fullmatch(text)
    return None if alone is None else f"{alone[2]}-{_MONTHS[alone[1].casefold()]:02}"


def _numeric_date(text: str) -> str | None:
    iso = _ISO.fullmatch(text)
    if iso is not None:
        return _iso(int(iso[1]), int(iso[2]), int(iso[3]))
    points = _POINTS.fullmatch(text)
    if points is not None:
        return _iso(int(points[3]), int(points[2]), int(points[1]))
    slashes = _SLASHES.fullmatch(text)
    if slashes is None:
        return None
    year = int(slashes[3])
    readings = {_iso(year, int(slashes[1]), int(slashes[2])), _iso(year, int(slashes[2]), int(slashes[1]))} - {None}
    return readings.pop() if len(readings) == 1 else None


def _iso(year: int, month: int, day: int) -> str | None:
    try:
        return date(year, month, day).isoformat()
    except ValueError:  # there is no such day
        return None


def _time(text: str) -> str | None:
    found = _TIME.fullmatch(text)
    if found is None:
        return None
    if found[3]:
        hour, minute = int(found[1]), int(found[2] or 0)
        is_hour = 1 <= hour <= 12
        hour = hour % 12 + (12 if found[3][0] in "pP" else 0)
    else:
        hour, minute = int(found[4]), int(found[5])
        is_hour = hour < 24
    return f"{hour:02}:{minute:02}" if is_hour and minute < 60 else None
