"""Add, rotate and revoke the tokens of a server's callers."""

import os
import secrets
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from pathlib import Path

from .errors import ConfigError, NotFound
from .security import system_time
from .token_file import CALLER_NAME, read_tokens, write_tokens
from .tokens import Scope, TokenRecord, hashed, token_records


@dataclass(frozen=True, slots=True)
class NewToken:
    """A new token. It cannot be read back from the file."""

    token: str = field(repr=False)
    record: TokenRecord


def add_token(
    path: Path,
    caller: str,
    *,
    scopes: Collection[Scope],
    lifetime: timedelta | None = None,
    now: Callable[[], datetime] = system_time,
) -> NewToken:
    """Create a token for `caller` and add it to `path`, which is created if it is missing.

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
    import fcntl  # missing on Windows, where tokens cannot be made but can be read

    try:
        descriptor = os.open(folder, os.O_RDONLY)
    except OSError as error:
        raise ConfigError(f"the folder {folder} cannot be used: {error.strerror}", hint="give a path in a folder of your own") from None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
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
    with _locked(path.resolve().parent):
        records = list(read_tokens(path)) if path.exists() else []
        yield records
        write_tokens(path, records)
