"""`nearfar serve token`: make, list, replace and revoke the tokens that callers of a server need."""

import re
from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import Annotated, Any, Final

import typer
from rich.text import Text

from ...protocols import ConfigError
from ...protocols import token_keeping as keeping
from ...protocols.certificates import first_certificate, read_roots
from ...protocols.pairing import fingerprint_of
from ...protocols.security import system_time
from ...protocols.token_file import read_tokens
from ...protocols.tokens import ANY_CERTIFICATE, Scope, TokenRecord
from . import options
from .printing import Line, Note, show, table
from .running import report_errors

Caller = Annotated[str, typer.Argument(help="Name of the device or person that the token is for.")]
TokenFile = Annotated[Path, typer.Option("--tokens", help="The token file of the server. `add` creates it.")]
Scopes = Annotated[list[str] | None, typer.Option("--scope", help="What it allows: describe, steps, memory or attach. May be repeated.")]
Lifetime = Annotated[str, typer.Option("--expires", help="Time after which it expires: 12h, 30d, 8w. Default: never.")]
_DEFAULT_FILE: Final = Path("tokens.toml")
_FOR_AGENTS: Final = (Scope.DESCRIBE, Scope.STEPS)
_DURATION: Final = re.compile(r"(\d{1,4})([smhdw])")
_UNITS: Final = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days", "w": "weeks"}

app = typer.Typer(help="Make, list, replace and revoke the tokens that callers of a server need.", no_args_is_help=True)


@app.command("add")
def add_token(
    caller: Caller,
    tokens: TokenFile = _DEFAULT_FILE,
    scope: Scopes = None,
    expires: Lifetime = "",
    certificate: Annotated[
        str,
        typer.Option(help="PEM file of a client certificate that takes the place of a token; `any`: every one with the caller's name."),
    ] = "",
    as_json: options.AsJson = False,
) -> None:
    """Make a token for a caller and print it. It is not shown again. Without scopes, its caller may ask the agents of a server."""
    with report_errors(as_json=as_json):
        lifetime = _parse_duration(expires) if expires else None
        scopes = _parse_scopes(scope) or _FOR_AGENTS
        if certificate:
            shown = ANY_CERTIFICATE if certificate == ANY_CERTIFICATE else _fingerprint(Path(certificate))
            record = keeping.add_certificate(tokens, caller, shown, scopes=scopes, lifetime=lifetime)
            told = f"{caller} needs no token in addition to its certificate ({shown}); allowed: {_names(record)}"
            show({**_fields(record), "tokens": str(tokens)}, [told], as_json=as_json)
        else:
            made = keeping.add_token(tokens, caller, scopes=scopes, lifetime=lifetime)
            show(_made(made, tokens), _made_lines(made), as_json=as_json)


@app.command("list")
def list_tokens(tokens: TokenFile = _DEFAULT_FILE, as_json: options.AsJson = False) -> None:
    """Print the caller of each token, what the token allows, and when it expires."""
    with report_errors(as_json=as_json):
        records, now = read_tokens(tokens), system_time()
        rows = table(("caller", "id", "shows", "scopes", "made", "expires (UTC)"), (_cells(record, now) for record in records))
        show({"tokens": [_fields(record) for record in records]}, [rows], as_json=as_json)


@app.command("rotate")
def rotate_token(
    caller: Caller,
    tokens: TokenFile = _DEFAULT_FILE,
    overlap: Annotated[str, typer.Option(help="How long the old token stays valid: 90m, 1d; 0 ends it at once.")] = "1d",
    scope: Scopes = None,
    expires: Lifetime = "",
    as_json: options.AsJson = False,
) -> None:
    """Make a new token for a caller and print it. It is not shown again. The old token stays valid for a while.

    Scopes and lifetime are those of the old token, unless they are given.
    """
    with report_errors(as_json=as_json):
        lifetime = _parse_duration(expires) if expires else None
        rest = timedelta() if overlap == "0" else _parse_duration(overlap)
        made = keeping.rotate_token(tokens, caller, overlap=rest, scopes=_parse_scopes(scope), lifetime=lifetime)
        old = Note(f"the old token is {f'valid for another {overlap}' if rest else 'revoked'}")
        show(_made(made, tokens), [*_made_lines(made), old], as_json=as_json)


@app.command("revoke")
def revoke_token(
    caller: Caller,
    tokens: TokenFile = _DEFAULT_FILE,
    id: Annotated[str, typer.Option(help="Id of the token to revoke, as `list` shows it. Default: all tokens of the caller.")] = "",
    as_json: options.AsJson = False,
) -> None:
    """Revoke a caller's tokens. Running servers notice within two seconds and end the steps that were started with them."""
    with report_errors(as_json=as_json):
        gone = [record.id for record in keeping.revoke_tokens(tokens, caller, id=id or None)]
        told = f"revoked: {', '.join(gone)}; a server that runs with {tokens} notices within two seconds"
        show({"caller": caller, "revoked": gone}, [told], as_json=as_json)


def _fingerprint(certificate: Path) -> str:
    return fingerprint_of(first_certificate(read_roots(certificate)))


def _made(made: keeping.NewToken, tokens: Path) -> dict[str, Any]:
    return {**_fields(made.record), "token": made.token, "tokens": str(tokens)}


def _made_lines(made: keeping.NewToken) -> Iterator[Line]:
    record = made.record
    until = "" if record.expires is None else f", until {_minute(record.expires)} UTC"
    yield Note(f"the token of {record.caller} ({_names(record)}{until}), for its NEARFAR_TOKEN; it is not shown again:", style="")
    yield made.token


def _cells(record: TokenRecord, now: datetime) -> tuple[str | Text, ...]:
    ends = "never" if record.expires is None else _minute(record.expires)
    expiry = Text(f"{ends} (expired)", style="red") if record.is_expired(now) else Text(ends)
    made = _minute(record.created)[: len("2026-03-01")]
    return (record.caller, record.id, "certificate" if record.certificate else "token", _names(record), made, expiry)


def _fields(record: TokenRecord) -> dict[str, Any]:
    times = {"created": record.created, "expires": record.expires}
    shown = {name: None if time is None else time.isoformat() for name, time in times.items()}
    return {"caller": record.caller, "id": record.id, "certificate": record.certificate or None, "scopes": sorted(record.scopes), **shown}


def _names(record: TokenRecord) -> str:
    return ", ".join(sorted(record.scopes))


def _minute(time: datetime | None) -> str:
    return "" if time is None else f"{time:%Y-%m-%d %H:%M}"


def _parse_scopes(names: Sequence[str] | None) -> frozenset[Scope] | None:
    known = {str(scope): scope for scope in Scope}
    if unknown := [name for name in names or () if name not in known]:
        raise ConfigError(f"there is no scope {unknown[0]!r}", hint=f"the scopes are {', '.join(known)}")
    return frozenset(known[name] for name in names) if names else None


def _parse_duration(text: str) -> timedelta:
    found = _DURATION.fullmatch(text)
    length = timedelta() if found is None else timedelta(**{_UNITS[found[2]]: int(found[1])})
    if not length:
        raise ConfigError(f"{text!r} is not a length of time", hint="write a number and s, m, h, d or w, as in 12h or 30d")
    return length
