"""Text: escaped for prompts, terminals and pages; its tokens estimated; JSON in one canonical form, and as lines of files."""

import errno
import hashlib
import json
import math
import os
import re
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import fields, is_dataclass
from decimal import MAX_EMAX, MIN_EMIN, Context, Decimal
from html import escape
from pathlib import Path
from typing import IO, Final

from pydantic import BaseModel, JsonValue, SecretBytes, SecretStr
from pydantic_core import to_jsonable_python

from ...protocols.system import CLOSED_ON_EXEC, file_locks

_UNSAFE: Final = re.compile(r"[<\x7f-\x9f\u00ad\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\U000e0000-\U000e007f]|\[(?=/?[A-Z_]+\])")
"""Marks of roles in chat templates (`<|im_end|>`, `[INST]`), which a tokenizer takes for the mark wherever they stand; line ends that JSON
leaves as they are; and invisible characters.
"""
_ESCAPES: Final = re.compile(r"(?:\\u[0-9a-f]{4})+")
_COMMANDS: Final = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
"""Control characters that a terminal obeys, and characters that turn the reading direction and so can hide the rest."""


_STYLE = """
:root { color-scheme: light dark; --line: #8884; --soft: #777 }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 62rem; margin: 2rem auto; padding: 0 1rem }
h1 { font-size: 1.5rem } h2 { font-size: 1.1rem; margin-top: 2rem } h3 { font-size: 1rem }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums }
caption { text-align: left; color: var(--soft); padding: .3rem 0 }
th, td { padding: .3rem .6rem; border-bottom: 1px solid var(--line); text-align: right; vertical-align: top }
th:first-child, td:first-child { text-align: left }
.wrong { color: #c1121f } .right { color: #2a9d8f }
svg { width: 100%; height: auto; max-width: 44rem } svg text { fill: currentColor; font-size: 13px }
.note { color: var(--soft) } .wide { overflow-x: auto }
@media (prefers-color-scheme: dark) { .wrong { color: #ff6b6b } }
"""
_quoted: Final = json.JSONEncoder(ensure_ascii=False).encode
_LONGEST_PLAIN: Final = 40
"""Places between a decimal number's first digit and its point, beyond which it is written with an exponent: 1E999999999 is short."""
_CONSTANTS: Final = {None: "null", True: "true", False: "false"}


def escape_text(text: str) -> str:
    r"""Return the text with marks and invisible characters escaped as in JSON (`\u003c`)."""
    return _UNSAFE.sub(_escape, text)


def unescape_text(text: str) -> str:
    """Undo `escape_text`."""
    return _ESCAPES.sub(_unescape, text)


def printable(text: str) -> str:
    """Return the text with control characters for terminals, and those that turn its direction, written out; line ends and tabs stay."""
    return _COMMANDS.sub(lambda match: match.group().encode("unicode_escape").decode("ascii"), text)


def spell_out(text: str) -> str:
    """Return the text in one line, with all invisible characters and line ends written out, for a decision of the user."""
    return "".join(character if character.isprintable() else character.encode("unicode_escape").decode("ascii") for character in text)


def shorten(text: str, most: int) -> str:
    """Return the text in one line of at most `most` characters."""
    words = " ".join(text.split())
    return words if len(words) <= most else f"{words[: most - 1]}\u2026"


def _escape(match: "re.Match[str]") -> str:
    units = match.group().encode("utf-16-be").hex()
    return "".join(f"\\u{units[place : place + 4]}" for place in range(0, len(units), 4))


def _unescape(match: "re.Match[str]") -> str:
    units = bytes.fromhex(match.group().replace("\\u", ""))
    text = units.decode("utf-16-be", "surrogatepass")
    return text if all(letter == "[" or _UNSAFE.fullmatch(letter) for letter in text) else match.group()


def page(title: str, body: str, *, style: str = "") -> str:
    """Return a document with a body of ready-made HTML."""
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<link rel="icon" href="data:,">
<title>{escape(title)}</title>
<style>{_STYLE}{style}</style>
</head>
<body>
{body}
</body>
</html>
"""


def table(head: Sequence[str], body: Sequence[Sequence[str]], *, caption: str = "") -> str:
    """Return a table of ready-made HTML cells."""
    title = f"<caption>{escape(caption)}</caption>" if caption else ""
    header = "".join(f'<th scope="col">{escape(name)}</th>' for name in head)
    lines = "\n".join("<tr>" + "".join(f"<td>{cell}</td>" for cell in line) + "</tr>" for line in body)
    return f"<table>{title}<thead><tr>{header}</tr></thead><tbody>\n{lines}\n</tbody></table>"


_PIECE: Final = re.compile(r"[A-Za-z]+|\s+|[\x21-\x7e]|[^\x00-\x7f]+")
_SWITCH: Final = re.compile(r"(?<=[a-z])[A-Z]|(?<=[A-Z])[a-z]{1,2}(?=[A-Z])")
"""A letter of the other case: where they are many, as in base64, tokens are short."""
_LETTERS: Final = 4
"""Letters of a token, at most: longer tokens are common words, and shorter ones make up for them."""
_BYTES: Final = 2
"""Bytes of a token outside of ASCII."""


def tokens_at_most(text: str) -> int:
    """Return the tokens of a text by its letters, digits, signs and bytes: above what the tokenizers of large models make of prose, code
    and Chinese."""
    return sum(_piece_tokens(piece[0]) for piece in _PIECE.finditer(text))


def _piece_tokens(piece: str) -> int:
    if piece.isspace():
        return 0 if piece == " " else 1 + piece.count("\n")
    if piece.isascii():
        return max(math.ceil(len(piece) / _LETTERS), 2 * len(_SWITCH.findall(piece)))
    return math.ceil(len(piece.encode(errors="surrogatepass")) / _BYTES)


def digest(*values: object) -> str:
    """Return a hash of the values' canonical JSON: 64 hexadecimal digits."""
    return hashlib.sha256(canonical(values).encode(errors="surrogatepass")).hexdigest()


def in_one_form(value: JsonValue) -> JsonValue:
    """Return a value whose texts differ neither in case nor in spaces nor in the mark at their end."""
    match value:
        case dict():
            return {name: in_one_form(inner) for name, inner in value.items()}
        case list():
            return [in_one_form(inner) for inner in value]
        case str():
            return " ".join(value.casefold().split()).rstrip("?.!")
    return value


def canonical(value: object) -> str:
    """Return JSON with sorted keys, no white space, and one way to write each number.

    In addition to RFC 8785, whole numbers of any size keep all their digits, sets are sorted, secrets are written out, and values that are
    no JSON are written as pydantic does. Raises `PydanticSerializationError` for those that pydantic does not know.
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
    """Return the number as ECMAScript writes it: the fewest digits that identify it, with an exponent from 1e21 and below 1e-6."""
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
    """Return a short name for a JSON value: equal values have the same."""
    text = json.dumps(value, sort_keys=True, ensure_ascii=True, separators=(",", ":"))
    return hashlib.sha256(text.encode("ascii")).hexdigest()


def append_line(path: Path, line: bytes) -> None:
    """Append a line and a newline. An unfinished line of a process that died while it wrote is removed.

    Raises `OSError`, and changes nothing, if the file ends with something else than a line of JSON: it is another program's.
    A new file is for its owner alone: there may be words of tasks in it.
    """
    with os.fdopen(os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | CLOSED_ON_EXEC, 0o600), "ab+") as file:
        _lock(file)
        _cut_torn_line(file)
        file.write(line + b"\n")


def drop_lines(path: Path, goes: Callable[[bytes], bool]) -> None:
    """Remove lines for which `goes` is true, in place and under the lock of those who append. Raises `OSError`."""
    with path.open("rb+", buffering=0) as file:
        _lock(file)
        before = file.read()
        kept = b"".join(line + b"\n" for line in whole_lines(before) if line and not goes(line))
        file.seek(0)
        file.write(kept + bytes(len(before) - len(kept)))  # what goes is overwritten before the file is cut
        os.fsync(file.fileno())
        file.truncate(len(kept))


def read_lines(path: Path) -> list[bytes]:
    """Return the whole lines of a file. A pipe is not waited for. Raises `OSError`."""
    with os.fdopen(os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | CLOSED_ON_EXEC), "rb") as file:
        return whole_lines(file.read() or b"")


def whole_lines(data: bytes) -> list[bytes]:
    """Return the lines of a file. A last one without its newline was cut off while it was written, and is left out."""
    return data[: data.rfind(b"\n") + 1].split(b"\n")


def _lock(file: IO[bytes]) -> None:
    """Wait for the lock of a file, which is released when the file is closed. Raise `ConfigError` on systems without file locks."""
    locks = file_locks("a file that several processes append to")
    locks.flock(file, locks.LOCK_EX)


def _cut_torn_line(file: IO[bytes]) -> None:
    if file.seek(0, os.SEEK_END) == 0:
        return
    file.seek(-1, os.SEEK_END)
    if file.read() != b"\n":
        file.seek(0)
        data = file.read()
        whole = data.rfind(b"\n") + 1
        if data[whole : whole + 1] not in (b"{", b"\0"):  # a power cut may leave zeros
            raise OSError(errno.EINVAL, "it ends with something else than a line of JSON")
        file.truncate(whole)
