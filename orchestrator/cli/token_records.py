"""What `nearfar serve token` does."""

import re
from collections.abc import Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Final

from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from ...protocols import ConfigError
from ...protocols.certificates import first_certificate, read_roots
from ...protocols.pairing import fingerprint_of
from ...protocols.security import system_time
from ...protocols.token_file import read_tokens
from ...protocols.token_keeping import NewToken, add_certificate, revoke_tokens, rotate_token
from ...protocols.token_keeping import add_token as add
from ...protocols.tokens import ANY_CERTIFICATE, Scope, TokenRecord
from .console import notes, output, print_json, reported

_FOR_AGENTS: Final = (Scope.DESCRIBE, Scope.STEPS)
_DURATION: Final = re.compile(r"(\d{1,4})([smhdw])")
_UNITS: Final = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days", "w": "weeks"}


def add_caller(caller: str, tokens: Path, *, scopes: Sequence[str] | None, expires: str, as_json: bool) -> None:
    """Make a caller's first token and show it."""
    with reported(as_json=as_json):
        lifetime = _duration(expires) if expires else None
        _show(add(tokens, caller, scopes=_scopes(scopes) or _FOR_AGENTS, lifetime=lifetime), tokens, as_json=as_json)


def certify_caller(caller: str, tokens: Path, certificate: str, *, scopes: Sequence[str] | None, expires: str, as_json: bool) -> None:
    """Let a caller in with a certificate."""
    with reported(as_json=as_json):
        shown = ANY_CERTIFICATE if certificate == ANY_CERTIFICATE else fingerprint_of(first_certificate(read_roots(Path(certificate))))
        lifetime = _duration(expires) if expires else None
        record = add_certificate(tokens, caller, shown, scopes=_scopes(scopes) or _FOR_AGENTS, lifetime=lifetime)
        if as_json:
            print_json({**_fields(record), "tokens": str(tokens)})
        else:
            output.print(f"{caller} needs no token beside its certificate ({shown}); good for: {_names(record)}", soft_wrap=True)


def rotate_caller(caller: str, tokens: Path, *, overlap: str, scopes: Sequence[str] | None, expires: str, as_json: bool) -> None:
    """Make a caller's next token and show it."""
    with reported(as_json=as_json):
        lifetime = _duration(expires) if expires else None
        rest = timedelta() if overlap == "0" else _duration(overlap)
        _show(rotate_token(tokens, caller, overlap=rest, scopes=_scopes(scopes), lifetime=lifetime), tokens, as_json=as_json)
        if not as_json:
            notes.print(f"the former token is {f'good for {overlap} more' if rest else 'revoked'}", style="dim")


def revoke_caller(caller: str, tokens: Path, *, id: str, as_json: bool) -> None:
    """Take tokens out of the file."""
    with reported(as_json=as_json):
        gone = [record.id for record in revoke_tokens(tokens, caller, id=id or None)]
        if as_json:
            print_json({"caller": caller, "revoked": gone})
        else:
            output.print(f"revoked: {', '.join(gone)}; a server that runs with {tokens} notices within a second or two", soft_wrap=True)


def list_tokens(tokens: Path, *, as_json: bool) -> None:
    """Show all but the digests."""
    with reported(as_json=as_json):
        records = read_tokens(tokens)
        if as_json:
            print_json({"tokens": [_fields(record) for record in records]})
        else:
            output.print(_table(records))


def _show(made: NewToken, tokens: Path, *, as_json: bool) -> None:
    if as_json:
        print_json({**_fields(made.record), "token": made.token, "tokens": str(tokens)})
        return
    record = made.record
    until = "" if record.expires is None else f", until {_moment(record.expires)} UTC"
    notes.print(f"the token of {record.caller} ({_names(record)}{until}), for its NEARFAR_TOKEN; it is not shown again:")
    output.print(made.token, soft_wrap=True)


def _table(records: Sequence[TokenRecord]) -> Table:
    table, now = Table("caller", "id", "shows", "scopes", "made", "expires (UTC)", box=SIMPLE_HEAD, pad_edge=False), system_time()
    for record in records:
        ends = "never" if record.expires is None else _moment(record.expires)
        expiry = Text(f"{ends} (expired)", style="red") if record.is_expired(now) else Text(ends)
        made = _moment(record.created)[: len("2026-03-01")]
        table.add_row(record.caller, record.id, "certificate" if record.certificate else "token", _names(record), made, expiry)
    return table


def _fields(record: TokenRecord) -> dict[str, Any]:
    times = {"created": record.created, "expires": record.expires}
    shown = {name: None if time is None else time.isoformat() for name, time in times.items()}
    return {"caller": record.caller, "id": record.id, "certificate": record.certificate or None, "scopes": sorted(record.scopes), **shown}


def _names(record: TokenRecord) -> str:
    return ", ".join(sorted(record.scopes))


def _moment(time: datetime | None) -> str:
    return "" if time is None else f"{time:%Y-%m-%d %H:%M}"


def _scopes(names: Sequence[str] | None) -> frozenset[Scope] | None:
    known = {str(scope): scope for scope in Scope}
    if unknown := [name for name in names or () if name not in known]:
        raise ConfigError(f"there is no scope {unknown[0]!r}", hint=f"there are {', '.join(known)}")
    return frozenset(known[name] for name in names) if names else None


def _duration(text: str) -> timedelta:
    found = _DURATION.fullmatch(text)
    length = timedelta() if found is None else timedelta(**{_UNITS[found[2]]: int(found[1])})
    if not length:
        raise ConfigError(f"{text!r} is no time", hint="write a number and s, m, h, d or w, as in 12h or 30d")
    return length
