"""What a server's owner does with tokens: make, replace and revoke them."""

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
    """A token that was just made. Nobody can read it in the file."""

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
    """Make a token for `caller` and add it to `path`, which is created where there is none.

    Raises `ConfigError` if the caller has one already, or if the file cannot be used.
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
    """Let `caller` in without a token where it shows this certificate: one with this fingerprint, or `ANY_CERTIFICATE` that names it.

    Raises `ConfigError` if that is there already, or if the file cannot be used.
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
    """Make another token for `caller`. The former one is good for `overlap` more, or goes at once.

    The new one has the same scopes and the same time to live, unless others are given. Raises `NotFound` if the caller has no token, and
    `ConfigError` if it has two that are good, since it would have three then.
    """
    with _changed(path) as records:
        today = now().replace(microsecond=0)
        former = [record for record in _of(records, caller, path) if record.digest]
        if not former:
            raise NotFound(f"{caller!r} has no token in {path}, but a certificate", hint="add one with `nearfar serve token add`")
        good = [record for record in former if not record.is_expired(today)]
        if len(good) > 1 and overlap:
            raise ConfigError(
                f"{caller!r} has {len(good)} tokens that are good",
                hint=f"revoke one with `nearfar serve token revoke {caller} --id ID --tokens {path}`, or give --overlap 0, which ends both",
            )
        last = former[-1]  # since they are added at the end
        made = _made(caller, scopes or last.scopes, lifetime or _lifetime(last), today)
        records[:] = [record for record in records if record not in former]
        records += [replace(record, expires=min(record.expires or today + overlap, today + overlap)) for record in good if overlap]
        records.append(made.record)
    return made


def revoke_tokens(path: Path, caller: str, *, id: str | None = None) -> list[TokenRecord]:
    """Take out the tokens and certificates of `caller`, or the one with this id; running servers notice.

    Raises `NotFound` if there is none.
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
    """What is the same of a token and of a certificate."""
    if not CALLER_NAME.fullmatch(caller):
        raise ConfigError("this is no name for a caller", hint="begin with a letter or digit, go on with those, - and _, 64 at most")
    created = now.replace(microsecond=0)
    expires = None if lifetime is None else created + lifetime
    return TokenRecord(id=secrets.token_hex(4), caller=caller, scopes=frozenset(scopes), created=created, expires=expires)


def _lifetime(record: TokenRecord) -> timedelta | None:
    return None if record.expires is None or record.created is None else record.expires - record.created


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Keep others who would change a token file in this folder out of the block; they wait."""
    import fcntl  # not on Windows, where nobody makes tokens; servers there can still read them

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
        known = ", ".join(sorted({record.caller for record in records})) or "nobody"
        raise NotFound(f"{caller!r} has no token in {path}", hint=f"these have: {known}")
    return found


@contextmanager
def _changed(path: Path) -> Iterator[list[TokenRecord]]:
    """The tokens in `path` to be changed, while nobody else changes them; written if the block comes to its end."""
    with _locked(path.resolve().parent):
        records = list(read_tokens(path)) if path.exists() else []
        yield records
        write_tokens(path, records)
