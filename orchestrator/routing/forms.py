"""Canonical forms of values in texts: LaTeX, Python and JSON literals, tuples and intervals, names."""

import ast
import json
import math
import re
from typing import Final

from .quantities import LONGEST, composed, date_of, quantity_of, truth_of

_LONGEST_LITERAL: Final = 20_000
"""Characters of a text up to which it may be a literal; a longer one is compared as text."""
_LONGEST_FORMULA: Final = 400
_NESTED: Final = 8
"""Fractions in fractions that are read, at most."""
_DECORATION: Final = " \t\r\n.,;:!?\"'`*$"
_BEFORE: Final = " \t\r\n,;:\"'`*$"
"""Decoration before a text: `!a` is not `a`, nor is `.net` the same as `net`."""
_PROPORTION: Final = re.compile(r"\d{1,9}(?:\s?:\s?\d{1,9}){1,4}")
_LATEX: Final = re.compile(r"\\(?:left|right|displaystyle|[!,;: ])|(?<=\\)[dt](?=frac)|\\(?:text|mathrm|mbox|boxed)(?=\s{0,3}\{)")
"""LaTeX commands that only affect how a formula is typeset."""
_SINGLE: Final = re.compile(r"\{(\w)\}")
"""Braces that may be left out."""
_GAP: Final = re.compile(r"(?<!\d) | (?!\d)")
"""A space that makes no difference: one between two numbers does."""
_ESCAPE: Final = re.compile(r"\\([\\'\"nrt])|\\")
_SYMBOLS: Final = {
    r"{,}": ",",
    r"\(": "",
    r"\)": "",
    r"\[": "",
    r"\]": "",
    r"\$": "$",
    r"\%": "%",
    r"\{": "{",
    r"\}": "}",
    r"^{\circ}": "°",
    r"^\circ": "°",
    r"\degree": "°",
    r"\cdot": "*",
    r"\times": "*",
    r"\pi": "π",
    r"\infty": "∞",
    r"\cup": "∪",
    r"\leq": "≤",
    r"\geq": "≥",
    r"\neq": "≠",
    r"\pm": "±",
    r"\sqrt": "√",
    "sqrt(": "√(",
}
_FRACTION: Final = re.compile(r"(\d?)\\frac\s?(?:\{([^{}]{1,80})\}|(\w))\s?(?:\{([^{}]{1,80})\}|(\w))")
_ROOT: Final = re.compile(r"√\s?(?:\{(\w{1,20})\}|\((\w{1,20})\))")
_SIMPLE: Final = re.compile(r"-?[\w.√π]{1,40}")
_FACTOR: Final = re.compile(r"-?(?:\d{1,30}(?:\.\d{1,30})?|√?\d{1,30}|\w)")
"""A denominator without brackets: 1/2x is half of x."""
_TYPESET: Final = re.compile(r"\\(?:text|mathrm|mbox|boxed)\s{0,3}\{([^{}]{0,200})\}")
_BRACKETED: Final = re.compile(r"[\[({].{1,300}[\])}]")
_NAMED: Final = re.compile(r"[^=<>≤≥≠!\d]{1,20}(?:=|≈)([^=<>≤≥≠]{1,80})")
_NO_FORMULA: Final = re.compile(r"[^\W\d_]{3}|(?:^|\s)[a-z]{2}(?:\s|$)|[`\n;:?!]|->|\*\*")
_ARTICLE: Final = re.compile(r"(?:the|an?)\s{1,3}(?=\w)")
_POLITE: Final = re.compile(r"(?:sure|certainly|of course|okay|ok|yes sir)[,!.:]\s{0,3}(?=\w)")


def is_literal(text: str) -> bool:
    """Return True if a text is a list, tuple, set, dictionary or quoted string in Python or JSON notation."""
    return _literal(text) is not None


def is_value(text: str) -> bool:
    """Return True for a number, a quantity, a date, a truth value, a literal, or a formula without words."""
    plain = _typeset_off(text)
    if quantity_of(plain) is not None or date_of(plain) is not None or truth_of(plain) is not None:
        return True
    if _PROPORTION.fullmatch(plain) or _literal(text) is not None or (plain != text.strip() and _literal(plain) is not None):
        return True
    return 0 < len(plain) <= LONGEST and any(map(_is_mathematical, plain)) and _NO_FORMULA.search(plain) is None


def _is_mathematical(character: str) -> bool:
    return character.isdigit() or character in "√π∞^"


def text_form(text: str) -> tuple[str, str | None]:
    """Return the canonical form of a text, and its form without the unit, the name or the quotation marks that others may leave out; None:
    it has none of them."""
    plain = _typeset_off(text)
    quantity = quantity_of(plain)
    if quantity is not None:
        return quantity.form, None if quantity.form == str(quantity.stated) else str(quantity.stated)
    named = _NAMED.fullmatch(plain)
    value = None if named is None else quantity_of(named[1].strip())
    if value is not None:
        return _form_of(text, plain), value.form
    return _form_of(text, plain), _words_form(text) if text.strip()[:1] in ("'", '"') and _literal(text) is not None else None


def _form_of(text: str, plain: str) -> str:
    return date_of(plain) or truth_of(plain) or _literal(text) or _literal(plain) or _bracketed(plain) or _prose_form(plain)


def _prose_form(text: str) -> str:
    return _blocks_form(text) if "```" in text else _words_form(_entity(text))


def _typeset_off(text: str) -> str:
    """Return a formula without LaTeX: fractions with a slash, roots and symbols as single characters."""
    stripped = text.strip()
    if len(stripped) > _LONGEST_FORMULA:
        return stripped
    plain = _LATEX.sub("", _TYPESET.sub(r"\1", stripped)) if "\\" in stripped else stripped
    if "\\" in plain or "{,}" in plain or "sqrt(" in plain:
        for command, symbol in _SYMBOLS.items():
            plain = plain.replace(command, symbol)
    if plain.startswith("$") and plain.endswith("$"):
        plain = plain.strip("$")
    for _ in range(_NESTED):  # from the inside out
        inner = _FRACTION.sub(_slashed, _ROOT.sub(lambda found: f"√{found[1] or found[2]}", plain))
        if inner == plain:
            break
        plain = inner
    return plain.strip()


def _slashed(found: "re.Match[str]") -> str:
    whole, above, below = found[1], found[2] or found[3], found[4] or found[5]
    pairs = ((above.strip(), _SIMPLE), (below.strip(), _FACTOR))
    sides = "/".join(side if simple.fullmatch(side) else f"({side})" for side, simple in pairs)
    return f"{whole} {sides}" if whole else sides


def _bracketed(text: str) -> str | None:
    """Return the form of a tuple, set or interval whose parts are no literals: a number in it counts by its value."""
    if not _BRACKETED.fullmatch(text) or any(bracket in text[1:-1] for bracket in "[](){}"):
        return None
    parts = text[1:-1].split(",")
    forms = [_number_or_words(part) for part in parts]
    return f"{text[0]}{','.join(forms)}{text[-1]}" if len(parts) > 1 else None


def _number_or_words(text: str) -> str:
    number = quantity_of(text.strip())
    return _words_form(text) if number is None else number.form


def _entity(text: str) -> str:
    """Return a text without politeness before it and without its article."""
    plain = text.strip().casefold().lstrip(_BEFORE).rstrip(_DECORATION)
    if len(plain) > LONGEST:
        return plain
    return _ARTICLE.sub("", _POLITE.sub("", plain, count=1), count=1) if _ARTICLE.match(plain) or _POLITE.match(plain) else plain


def _words_form(text: str) -> str:
    if len(text) > _LONGEST_LITERAL:  # some characters stand for 18
        return "".join(text.casefold().split())
    plain = _LATEX.sub("", composed(text)).casefold().lstrip(_BEFORE).rstrip(_DECORATION)
    return _GAP.sub("", " ".join(_SINGLE.sub(r"\1", plain).split()))


def _blocks_form(text: str) -> str:
    """Return the form of a text with blocks of code, in which case, spaces and line breaks make a difference."""
    parts = text.split("```")
    parts[1::2] = [_code_form(part) for part in parts[1::2]]
    parts[::2] = [_words_form(part) for part in parts[::2]]
    return "```".join(parts)


def _code_form(block: str) -> str:
    language, newline, code = block.partition("\n")
    lines = (code if newline and len(language.split()) <= 1 else block).split("\n")
    return "\n".join(line.rstrip() for line in lines).strip("\n")


def _literal(text: str) -> str | None:
    """Return the form of a literal, in which case and types make a difference; None if the text is no literal."""
    stripped = text.strip()
    if not stripped.startswith(("[", "(", "{", '"', "'")) or len(stripped) > _LONGEST_LITERAL:
        return None
    try:
        # Escapes that Python does not know, as in LaTeX, would be warned of; they mean the backslash itself.
        return value_form(ast.literal_eval(_ESCAPE.sub(lambda found: found[0] if found[1] else "\\\\", stripped)), is_exact=True)
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        pass
    try:
        return value_form(json.loads(stripped), is_exact=True)
    except (ValueError, RecursionError):
        return None


def value_form(value: object, *, is_exact: bool) -> str:
    """Return the canonical text of a value. `is_exact`: case matters, and whether a sequence is a list or a tuple."""
    if isinstance(value, bool) or value is None:
        return str(value)
    if isinstance(value, int | float):
        return _number_form(value)
    if isinstance(value, str):
        return repr(value if is_exact else _argument_form(value))
    if isinstance(value, dict):
        return "{" + ",".join(sorted(f"{key!r}:{value_form(inner, is_exact=is_exact)}" for key, inner in value.items())) + "}"
    if isinstance(value, set | frozenset):
        return "set(" + ",".join(sorted(value_form(inner, is_exact=is_exact) for inner in value)) + ")"
    if isinstance(value, list | tuple):
        inside = ",".join(value_form(inner, is_exact=is_exact) for inner in value)
        return f"({inside})" if is_exact and isinstance(value, tuple) else f"[{inside}]"
    return repr(value)


def _argument_form(text: str) -> str:
    """Return the form of an argument. Unlike in prose, signs count: `*.log` is not `.log`, and .5 is not 5."""
    if len(text) > _LONGEST_LITERAL:
        return text
    return " ".join(composed(text).casefold().split())


def _number_form(value: float) -> str:
    if isinstance(value, float) and math.isfinite(value) and value.is_integer():
        return str(int(value))
    return repr(value)
