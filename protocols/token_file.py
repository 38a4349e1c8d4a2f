"""The file in which a server's owner keeps the tokens of its callers: digests only, readable by the owner only. Tokens are added,
rotated and revoked there.

    [[token]]
    caller = "laptop"
    id = "3f9a1c20"
    scopes = ["describe", "steps"]
    created = 2026-03-01T12:00:00Z
    expires = 2026-06-01T12:00:00Z
    digest = "sha256:..."

    [end]

A caller that needs only a certificate has `certificate` in place of `digest`: its fingerprint, or "any" for every certificate that names
the caller. `[end]` is the last line: a file without it is half written and is refused, since it may lack tokens.
"""

import errno
import logging
import os
import re
import secrets
import stat
import sys
import tomllib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

import anyio

from .errors import ConfigError, NotFound
from .security import ANY_CERTIFICATE, Scope, TokenRecord, Tokens, hashed, is_digest, system_time, token_records
from .system import file_locks, hint_for, replace_text

logger = logging.getLogger(__name__)

_LOOK_EVERY = 1.0
"""Seconds between two looks at the file."""
CALLER_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")
"""The allowed names of callers."""
_ID: Final = re.compile(r"[0-9a-f]{8,64}")
_HEADER: Final = "# Tokens of callers, made with `nearfar serve token`. These are digests, which give no access by themselves.\n"
_END: Final = "[end]"
_MAKE_HINT: Final = "make one with `nearfar serve token add`"
_KEYS: Final = {"caller", "id", "scopes", "created"}
_FURTHER_KEYS: Final = {"expires", "digest", "certificate"}
_PRIVATE: Final = stat.S_IRWXG | stat.S_IRWXO


def read_tokens(path: Path) -> tuple[TokenRecord, ...]:
    """Read the tokens in `path`. Raise `ConfigError`, which quotes none, for a file that is missing, damaged or readable by others."""
    try:
        mode, content = look(path)
        text = content.decode("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise ConfigError(f"the tokens in {path} cannot be read: {reason}", hint=_MAKE_HINT) from None
    if sys.platform != "win32" and mode & _PRIVATE:
        raise ConfigError(f"others can read the tokens in {path}", hint=f"chmod 600 {path}, and replace the tokens if they were seen")
    return parse_tokens(text, str(path))


def look(path: Path) -> tuple[int, bytes]:
    """Return the mode and the content of a file. Raise `OSError` for a pipe or a device too, whose reading may never end or begin."""
    descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0))  # which Windows has not
    with os.fdopen(descriptor, "rb") as file:
        mode = os.fstat(descriptor).st_mode
        if not stat.S_ISREG(mode):
            raise OSError(errno.EINVAL, "it is no file")
        return mode, file.read()


def load_tokens(path: Path) -> tuple[TokenRecord, ...]:
    """Read the tokens in `path`. Raise `ConfigError` if there is none too: a server without tokens admits every caller."""
    records = read_tokens(path)
    if not records:
        raise ConfigError(f"{path} holds no token", hint=_MAKE_HINT)
    return records


def parse_tokens(text: str, where: str) -> tuple[TokenRecord, ...]:
    """Parse the text of a token file. Raise `ConfigError` that names `where` it is and quotes nothing of it: it may be a secret."""
    try:
        document = tomllib.loads(text)
    except (ValueError, RecursionError):  # of numbers and nesting without end, tomllib says nothing of its own
        raise ConfigError(
            f"{where} is damaged: it is not TOML", hint="correct it, or delete it and run `nearfar serve token add`"
        ) from None
    if document.keys() - {"token", "end"}:
        raise ConfigError(
            f"{where} has an unknown format, perhaps that of an earlier version",
            hint="delete it, and make a new token for every caller with `nearfar serve token add`, or `nearfar worker pair`",
        )
    if document.get("end") != {} or text.rstrip().rpartition("\n")[2] != _END:
        raise ConfigError(f"{where} is incomplete: its last line is not {_END}", hint=f"write {_END} below the last token")
    entries = document.get("token", [])
    if not isinstance(entries, list):
        raise _malformed(where, 1)
    return token_records(_parsed_record(entry, where, position) for position, entry in enumerate(entries, 1))


def render_tokens(records: Iterable[TokenRecord]) -> str:
    """Return the text of a file with these tokens, which `parse_tokens` reads."""
    return "\n".join((_HEADER, *map(_rendered, records), f"{_END}\n"))


def write_tokens(path: Path, records: Iterable[TokenRecord]) -> None:
    """Replace `path` atomically, so that no reader sees half a file. Raise `ConfigError` if that fails."""
    try:
        replace_text(path, render_tokens(records), mode=0o600)
    except OSError as error:
        hint = hint_for(error, "give a path in a folder of your own")
        raise ConfigError(f"{path} cannot be written: {error.strerror}", hint=hint) from None


def _rendered(record: TokenRecord) -> str:
    lines = {
        "caller": f'"{record.caller}"',
        "id": f'"{record.id}"',
        "scopes": str([str(scope) for scope in Scope if scope in record.scopes]).replace("'", '"'),
        "created": _moment(record.created),
        "expires": _moment(record.expires),
        "digest": record.digest and f'"{record.digest}"',
        "certificate": record.certificate and f'"{record.certificate}"',
    }
    return "[[token]]\n" + "".join(f"{key} = {value}\n" for key, value in lines.items() if value)


def _moment(moment: datetime | None) -> str:
    return "" if moment is None else moment.astimezone(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")


def _parsed_record(entry: object, where: str, position: int) -> TokenRecord:
    """Read one token. Messages name entries by position: a token may stand where the name should be."""
    if not isinstance(entry, Mapping) or not entry.keys() >= _KEYS or not entry.keys() <= _KEYS | _FURTHER_KEYS:
        raise _malformed(where, position)
    caller, id = entry["caller"], entry["id"]
    proof = {key: entry[key] for key in ("digest", "certificate") if key in entry}
    if not (_matches(CALLER_NAME, caller) and _matches(_ID, id) and _is_proof(proof)):
        raise _malformed(where, position)
    times = {key: entry[key] for key in ("created", "expires") if key in entry}
    if not all(map(_is_moment, times.values())):
        raise ConfigError(f"{where}: token {position} has an invalid time", hint="write 2026-06-01T12:00:00Z, with the zone")
    return TokenRecord(caller=caller, id=id, scopes=_scopes(entry["scopes"], where, position), **proof, **times)


def _is_moment(value: object) -> bool:
    if not isinstance(value, datetime) or value.tzinfo is None:
        return False
    try:
        value.astimezone(UTC)
    except OverflowError:  # in the first or last hours of all years that there are
        return False
    return True


def _is_proof(proof: Mapping[str, object]) -> bool:
    """Return whether this is a valid digest of a token or a certificate."""
    ((kind, value), *rest) = proof.items() or [("", None)]
    return not rest and isinstance(value, str) and (is_digest(value) or (kind, value) == ("certificate", ANY_CERTIFICATE))


def _scopes(given: object, where: str, position: int) -> frozenset[Scope]:
    known = {str(scope): scope for scope in Scope}
    if not isinstance(given, list) or not given or not all(isinstance(scope, str) and scope in known for scope in given):
        raise ConfigError(f"{where}: token {position} has an unknown scope, or none", hint=f"the scopes are {', '.join(known)}")
    return frozenset(known[scope] for scope in given)


def _matches(pattern: re.Pattern[str], value: object) -> bool:
    return isinstance(value, str) and pattern.fullmatch(value) is not None


def _malformed(where: str, position: int) -> ConfigError:
    expected = "caller, id, scopes, created, digest or certificate and, where there is an end, expires"
    return ConfigError(f"{where}: token {position} is malformed", hint=f"it needs {expected}; delete it and run `nearfar serve token add`")


async def follow_tokens(path: Path, replace_tokens: Callable[[Tokens], None]) -> None:
    """Give a server the tokens in `path` now and after every change. An unreadable file changes nothing, and is logged."""
    seen: object = None
    while True:
        if (looks := _looks(path)) != seen:
            seen = looks
            try:
                replace_tokens(read_tokens(path))
                logger.info("read the tokens")
            except ConfigError as error:
                logger.error("the tokens stay as they were: %s", error)
        await anyio.sleep(_LOOK_EVERY)


def _looks(path: Path) -> object:
    """Return the state of the file. Its whole content is compared, because time and size may stay the same after a change."""
    try:
        return look(path)
    except OSError as error:
        return error.errno


@dataclass(frozen=True, slots=True)
class NewToken:
    """A new token. It cannot be read back from the file."""

    token: str = field(repr=False)
    """The token itself, for its caller alone."""
    record: TokenRecord
    """The record that the file keeps, with the digest of the token."""


def add_token(
    path: Path,
    caller: str,
    *,
    scopes: Collection[Scope],
    lifetime: timedelta | None = None,
    now: Callable[[], datetime] = system_time,
) -> NewToken:
    """Create a token for `caller` that allows `scopes`, and add it to `path`, which is created if it is missing. It expires after
    `lifetime`, counted from `now`, which returns the present moment; None: never.

    Raise `ConfigError` if the caller has one already, or if the file cannot be used.
    """
    with _changed(path) as records:
        if any(record.caller == caller and record.digest for record in records):
            raise ConfigError(
                f"{caller!r} has a token in {path}",
                hint=f"replace it with `nearfar serve token rotate {caller} --tokens {path}`, or revoke it first",
            )
        made = _made(caller, scopes, lifetime, now())
        records.append(made.record)
    return made


def add_certificate(
    path: Path,
    caller: str,
    certificate: str,
    *,
    scopes: Collection[Scope],
    lifetime: timedelta | None = None,
    now: Callable[[], datetime] = system_time,
) -> TokenRecord:
    """Admit `caller` without a token if it shows this certificate: one with this fingerprint, or, for `ANY_CERTIFICATE`, one that names
    it.

    Raise `ConfigError` if that is there already, or if the file cannot be used.
    """
    with _changed(path) as records:
        blank = _record(caller, scopes, lifetime, now())
        records.append(replace(blank, certificate=certificate))
        token_records(records)
    return records[-1]


def rotate_token(
    path: Path,
    caller: str,
    *,
    overlap: timedelta,
    scopes: Collection[Scope] | None = None,
    lifetime: timedelta | None = None,
    now: Callable[[], datetime] = system_time,
) -> NewToken:
    """Create another token for `caller`. The former one stays valid for `overlap`, or ends at once.

    The new one has the same scopes and lifetime, unless others are given. Raise `NotFound` if the caller has no token, and `ConfigError`
    if it has two valid ones, since a third would follow.
    """
    with _changed(path) as records:
        today = now().replace(microsecond=0)
        former = [record for record in _of(records, caller, path) if record.digest]
        if not former:
            raise NotFound(f"{caller!r} has no token in {path}, but a certificate", hint="add one with `nearfar serve token add`")
        good = [record for record in former if not record.is_expired(today)]
        if len(good) > 1 and overlap:
            raise ConfigError(
                f"{caller!r} has {len(good)} valid tokens",
                hint=f"revoke one with `nearfar serve token revoke {caller} --id ID --tokens {path}`, or give --overlap 0, which ends both",
            )
        last = former[-1]  # since they are added at the end
        made = _made(caller, scopes or last.scopes, lifetime or _lifetime(last), today)
        records[:] = [record for record in records if record not in former]
        records += [replace(record, expires=min(record.expires or today + overlap, today + overlap)) for record in good if overlap]
        records.append(made.record)
    return made


def revoke_tokens(path: Path, caller: str, *, id: str | None = None) -> list[TokenRecord]:
    """Remove the tokens and certificates of `caller`, or the one with this id; running servers notice.

    Raise `NotFound` if there is none.
    """
    with _changed(path) as records:
        gone = [record for record in _of(records, caller, path) if id in (None, record.id)]
        if not gone:
            raise NotFound(f"{caller!r} has no token {id!r} in {path}", hint=f"`nearfar serve token list --tokens {path}` shows the ids")
        records[:] = [record for record in records if record not in gone]
    return gone


def _made(caller: str, scopes: Collection[Scope], lifetime: timedelta | None, now: datetime) -> NewToken:
    token = secrets.token_hex(32)
    return NewToken(token, replace(_record(caller, scopes, lifetime, now), digest=hashed(token)))


def _record(caller: str, scopes: Collection[Scope], lifetime: timedelta | None, now: datetime) -> TokenRecord:
    """Return a record with the fields that tokens and certificates share."""
    if not CALLER_NAME.fullmatch(caller):
        raise ConfigError("the caller's name is invalid", hint="use at most 64 letters, digits, - and _, beginning with a letter or digit")
    created = now.replace(microsecond=0)
    expires = None if lifetime is None else created + lifetime
    return TokenRecord(id=secrets.token_hex(4), caller=caller, scopes=frozenset(scopes), created=created, expires=expires)


def _lifetime(record: TokenRecord) -> timedelta | None:
    return None if record.expires is None or record.created is None else record.expires - record.created


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Hold a lock on the folder, so that other changes of token files in it wait."""
    locks = file_locks("changing a file of tokens")
    try:
        descriptor = os.open(folder, os.O_RDONLY)
    except OSError as error:
        raise ConfigError(f"the folder {folder} cannot be used: {error.strerror}", hint="give a path in a folder of your own") from None
    try:
        locks.flock(descriptor, locks.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _of(records: Collection[TokenRecord], caller: str, path: Path) -> list[TokenRecord]:
    found = [record for record in records if record.caller == caller]
    if not found:
        known = ", ".join(sorted({record.caller for record in records})) or "none"
        raise NotFound(f"{caller!r} has no token in {path}", hint=f"callers with a token: {known}")
    return found


@contextmanager
def _changed(path: Path) -> Iterator[list[TokenRecord]]:
    """Yield the tokens in `path` to be changed, under a lock; write them if the block succeeds."""
    with _locked(Path(os.path.realpath(path)).parent):
        records = list(read_tokens(path)) if path.exists() else []
        yield records
        write_tokens(path, records)
