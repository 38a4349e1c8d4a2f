"""Values as text that is the same wherever they say the same: the canonical JSON of RFC 8785."""

import hashlib
import json
from collections.abc import Mapping, Sequence, Set
from dataclasses import fields, is_dataclass
from decimal import MAX_EMAX, MIN_EMIN, Context, Decimal
from typing import Final

from pydantic import BaseModel, JsonValue, SecretBytes, SecretStr
from pydantic_core import to_jsonable_python

_quoted: Final = json.JSONEncoder(ensure_ascii=False).encode
_LONGEST_PLAIN: Final = 40
"""Places between a decimal number's first digit and its point, beyond which it is written with an exponent: 1E999999999 is short."""
_CONSTANTS: Final = {None: "null", True: "true", False: "false"}


def digest(*values: object) -> str:
    """A hash of their canonical JSON: 64 hexadecimal digits."""
    return hashlib.sha256(canonical(values).encode(errors="surrogatepass")).hexdigest()


def canonical(value: object) -> str:
    """JSON with sorted keys, no white space, and one way to write each number.

    Beside RFC 8785, whole numbers of any size keep all their digits, sets are sorted, secrets are written out, and what is no JSON is
    written as pydantic does. Raises `PydanticSerializationError` for what pydantic does not know.
    """
    match value:
        case str():
            return _quoted(value)
        case None | bool():
            return _CONSTANTS[value]
        case int():
            return str(int(value))
        case float():
            return _number(value)
        case Decimal():
            return _decimal(value)
        case dict():  # before the abstract types, which take longer to tell
            return _members(value)
        case list() | tuple():
            return "[" + ",".join(map(canonical, value)) + "]"
        case SecretStr() | SecretBytes():
            return canonical(value.get_secret_value())
        case BaseModel():
            return canonical(dict(value))  # also those fields that are left out when it is shown
        case Mapping():
            return _members(value)
        case Set():
            return "[" + ",".join(sorted(map(canonical, value))) + "]"
        case Sequence() if not isinstance(value, bytes | bytearray):
            return "[" + ",".join(map(canonical, value)) + "]"
    if is_dataclass(value):
        return canonical({field.name: getattr(value, field.name) for field in fields(value)})
    return canonical(to_jsonable_python(value))


def _members(value: Mapping[object, object]) -> str:
    members = sorted(((str(key), canonical(item)) for key, item in value.items()), key=lambda member: _code_units(member[0]))
    return "{" + ",".join(f"{_quoted(key)}:{item}" for key, item in members) + "}"


def _number(value: float) -> str:
    """As ECMAScript writes it: the fewest digits that are read as this number, with an exponent from 1e21 and below 1e-6."""
    text = repr(value)
    if not value or not 1e-6 <= abs(value) < 1e21:
        mantissa, _, exponent = text.removesuffix(".0").partition("e")
        return f"{mantissa}e{int(exponent):+d}" if exponent else mantissa.removeprefix("-0") or "0"
    return format(Decimal(text), "f").removesuffix(".0")


def _decimal(value: Decimal) -> str:
    """Write 5, 5.0 and 5E0 as one number, with all digits that it has. `normalize` alone would round to 28."""
    if not value.is_finite():
        return _quoted(str(value))
    exact = Context(prec=len(value.as_tuple().digits), Emax=MAX_EMAX, Emin=MIN_EMIN, traps=[])
    fewest = value.normalize(exact)
    if not fewest:
        return "0"
    return format(fewest, "f") if abs(fewest.adjusted()) <= _LONGEST_PLAIN else str(fewest)


def _code_units(key: str) -> bytes:
    return key.encode("utf-16-be", errors="surrogatepass")


def fingerprint(value: JsonValue) -> str:
    """A short name for any JSON value: the same for the same value."""
    return hashed(value)


def hashed(value: JsonValue) -> str:
    text = json.dumps(value, sort_keys=True, ensure_ascii=True, separators=(",", ":"))
    return hashlib.sha256(text.encode("ascii")).hexdigest()
