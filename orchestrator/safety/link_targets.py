"""Find the parts of an answer that a program which displays it may fetch, link or send: no private value is filled in there.

An answer is read as Markdown (CommonMark with tables), as HTML, and as plain text in which programs make links of addresses. A part of an
address in any of the three readings counts. A *mark*, a word of letters and digits, stands in the place of each value in question.
"""

import html
import re
import unicodedata
from collections.abc import Iterator
from functools import cache
from html.parser import HTMLParser
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from markdown_it import MarkdownIt


_ACTIVE: Final = re.compile(
    "applet|base|button|embed|fencedframe|form|frame|frameset|iframe|input|isindex|link|listing|math|meta|noembed|noframes|noscript|object"
    "|plaintext|portal|script|select|style|svg|template|textarea|title|xmp"
)
"""Elements that run, restyle or send the text of a whole page, or change how the rest of it is read."""
_CLOSING: Final = "'\"-->'\">"
"""Ends a tag or a comment that was left open at the end."""
_MOST_BRACKETS: Final = 20_000
"""Most brackets of a text that is parsed: some parsers take time in proportion to the square of their number."""
_LINK: Final = re.compile(r"\]\s?\(")
_DEEPER: Final = {"(": 1, ")": -1}
_DEFINED: Final = re.compile(r"\[(?:\\.|[^\[\]\\])*\]", re.DOTALL)
_WORD: Final = re.compile(r"[^ \t\n\r\f\v]+")
_SCHEMES: Final = "about|blob|cid|data|file|ftps?|https?|intent|javascript|mailto|vbscript|view-source|wss?"
_ADDRESS: Final = re.compile(
    rf"""
    [:/\\][/\\]                                               # scheme://, //host; browsers take a backslash for a slash
    | (?<![a-z0-9]) (?:{_SCHEMES}) : (?=\S)
    | (?<![a-z0-9]) (?:magnet|sips?|sms|tel|xmpp) : [^\s:?]*+ \?
    | (?<![a-z0-9]) www[0-9]*\.
    | \w \. [^\W\d_][\w-]++ \.? (?: :[0-9]+ )? [/?\#]         # a domain and a path
    | (?<![0-9.]) [0-9]+ (?: \.[0-9]+ ){{3}} (?: :[0-9]+ )? [/?\#]
    | (?<![\w.-]) [a-z][\w.-]*+ :[0-9]+ [/?\#]                # localhost:8000/
    """,
    re.IGNORECASE | re.VERBOSE,
)
_HOST: Final = re.compile(r"[\w.-]++")
_MAIL: Final = re.compile(r"(?<![\w.!#$%&'*+/=?^`{|}~-])[\w.!#$%&'*+/=?^`{|}~-]++@[\w-]++\.[^\W_]")
_LAST_LABEL: Final = re.compile(r"[^\W\d_][\w-]+")
_FILE: Final = re.compile(
    "bmp|conf|cfg|csv|docx|gif|htm|html|ico|ini|jpeg|jpg|json|log|odt|pdf|png|pptx|svg|toml|tsv|txt|xlsx|xml|yaml|yml", re.IGNORECASE
)
"""Endings of files, none of which is a top-level domain."""
_SPACED: Final = re.compile(
    r"""
    <\s*[a-z][a-z0-9+.-]+:(?=\S)[^<>]*                         # <https://...>, with spaces or line ends
    | \x1b[\]PX^_] [^\x07\x1b\x9c]* | \x9d [^\x07\x1b\x9c]*    # a terminal's hyperlinks
    | \[(?:img|url|video|audio|media|iframe)\b .*? (?: \[/ | \Z )
    | \\(?:href|url|includegraphics) \s* (?: \[[^\]]*\] )? \s* \{ [^{}]*
    """,
    re.IGNORECASE | re.VERBOSE | re.DOTALL,
)
_ESCAPED: Final = re.compile(r"\\([!-/:-@\[-`{-~])")
_ON_LETTERS: Final = ("Cf", "Mc", "Me", "Mn")
"""Categories of characters that take no place of their own."""
_DOTS: Final = str.maketrans("\u3002\uff0e\uff61", "...")


def marks_in_addresses(text: str, marks: re.Pattern[str]) -> set[str]:
    """Return the marks of a text that stand in an address a renderer may fetch, link or send. `marks` matches one mark."""
    found: set[str] = set()
    if sum(map(text.count, "<[")) > _MOST_BRACKETS:
        return {mark.lower() for mark in marks.findall(text)}
    for read in (_as_markdown, _as_html, _as_plain):
        for address in read(text, marks):
            found.update(mark.lower() for mark in marks.findall(address))
    return found


Marks = re.Pattern[str]


def _as_markdown(text: str, marks: Marks) -> Iterator[str]:
    environment: dict[str, object] = {}
    yield from _as_html(_markdown().render(text, environment), marks)
    yield from _destinations(text)
    if environment.get("references"):  # a value that is a label chooses one of the addresses
        yield from _DEFINED.findall(text)
        yield from (str(reference) for reference in environment.values())


def _as_html(text: str, marks: Marks) -> Iterator[str]:
    reader = _Html()
    try:
        reader.feed(text + _CLOSING)
        reader.close()
    except AssertionError:  # how html.parser refuses a declaration that it cannot read
        reader.is_active = True
    yield from (text,) if reader.is_active else reader.sent


def _as_plain(text: str, marks: Marks) -> Iterator[str]:
    for view in dict.fromkeys((text, _plain(text))):
        yield from (match[0] for match in _SPACED.finditer(view))
        for match in _WORD.finditer(view):
            if marks.search(match[0]) and _is_address(match[0], marks):
                yield match[0]


def _is_address(word: str, marks: Marks) -> bool:
    """Return whether programs make a link of a word that holds a mark."""
    return (
        _ADDRESS.search(word) is not None
        or any(marks.search(mail[0]) for mail in _MAIL.finditer(word))
        or any(_is_host(name[0], marks) for name in _HOST.finditer(word) if marks.search(name[0]))
    )


def _is_host(name: str, marks: Marks) -> bool:
    before, _, last = name.strip(".").rpartition(".")
    return bool(before) and _LAST_LABEL.fullmatch(last) is not None and not _FILE.fullmatch(last) and not marks.search(last)


def _plain(text: str) -> str:
    """Return the text as it is displayed: entities, escapes and invisible characters undone, wide letters made plain.

    Marks that are put on letters go as well: names of hosts may have them, some of which are ignored and others a part of the name.
    """
    shown = unicodedata.normalize("NFKC", html.unescape(html.unescape(text)).translate(_DOTS))
    shown = "".join(character for character in shown if unicodedata.category(character) not in _ON_LETTERS)
    return _ESCAPED.sub(r"\1", shown)


def _destinations(text: str) -> Iterator[str]:
    """Yield what stands between the brackets of inline links, by the loosest of the rules: up to the bracket that closes it."""
    end = 0
    while (begin := _LINK.search(text, end)) is not None:
        depth, end = 1, begin.end()
        while end < len(text) and depth:
            depth += _DEEPER.get(text[end], 0)
            end += 1
        yield text[begin.end() : end]


@cache
def _markdown() -> "MarkdownIt":
    """Return a parser of Markdown that makes links of all addresses, also of those that a careful one would leave out."""
    from markdown_it import MarkdownIt

    parser = MarkdownIt("commonmark").enable(["table", "strikethrough"])
    parser.validateLink = lambda url: True  # type: ignore[method-assign]  # the parser's documented way to choose
    return parser


class _Html(HTMLParser):
    """Collects what a document fetches, links or hides: values of attributes, and comments, which browsers end elsewhere."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.sent: list[str] = []
        self.is_active = False
        """The document runs, styles or sends something."""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.is_active = self.is_active or _ACTIVE.fullmatch(tag.rpartition(":")[2]) is not None
        self.sent.extend(f"{name}={value}" for name, value in attrs if value is not None)

    def handle_comment(self, data: str) -> None:
        self.sent.append(data)

    def handle_decl(self, decl: str) -> None:
        self.sent.append(decl)

    handle_pi = unknown_decl = handle_comment
