"""The callers of the HTTP server: known by their tokens, and kept within limits before their requests are read."""

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from ...protocols.access import Access
from ...protocols.callers import CallerShares, FailedAttempts, Share, home_of
from ...protocols.limits import CALLS_OF_A_CALLER
from ...protocols.security import Identity
from ...protocols.tokens import Credentials, Scope
from .requests import Scope as Asgi

ADMISSION_KEY: Final = "nearfar.admission"
"""Key of an ASGI scope under which the caller's `AdmittedCaller` stands, once its token was checked."""
_KEY: Final = "x-api-key"
"""Header in which Anthropic's clients send their key."""


@dataclass(frozen=True, slots=True)
class AdmittedCaller:
    """A caller, and the rules by which it was let in."""

    identity: Identity
    access: Access
    """Ends what runs with a token that is revoked or expires."""


class Callers:
    """Finds out who calls, by the rules of `access`, and what each has open."""

    def __init__(self, access: Access, *, monotonic: Callable[[], float] = time.monotonic) -> None:
        self.access = access
        self._attempts = FailedAttempts(monotonic)
        self._shares = CallerShares()

    def identify(self, asgi: Asgi, headers: Mapping[str, str], needed: Scope) -> Identity:
        """Return the caller of a request.

        Raise `Unauthenticated` for a token that is missing, wrong or expired, `PermissionDenied` for one without the `needed` scope,
        `RateLimited` where too many wrong ones came from an address.
        """
        key = headers.get(_KEY)
        shown = headers.get("authorization") or ("" if key is None else f"Bearer {key}")
        home = home_of(_peer(asgi.get("client")))

        def find() -> Identity:
            return self.access.authenticator.identify(Credentials(shown))

        identity = find() if home is None or not shown else self._attempts.identify(home, shown, find)
        identity.require(needed)
        return identity

    @contextmanager
    def call(self, identity: Identity) -> Iterator[Share]:
        """Count a request of a caller while it is served. Raise `RateLimited` if too many are."""
        with self._shares.call(("caller", identity.caller), CALLS_OF_A_CALLER) as share:
            yield share


def _peer(client: tuple[str, int] | None) -> str:
    """Return the other end as gRPC writes it."""
    if client is None:
        return ""
    host, port = client
    return f"ipv6:[{host}]:{port}" if ":" in host else f"ipv4:{host}:{port}"
