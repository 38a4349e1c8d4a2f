"""Let browsers in: the holder of a one-time link gets a cookie, and each change needs the token of its session."""

import hmac
import secrets
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final

from ...protocols import PermissionDenied, Unauthenticated

LINK_SECONDS: Final = 600.0
"""Seconds for which a one-time link can be opened."""
SESSION_SECONDS: Final = 12 * 3600.0
"""Seconds for which a browser stays logged in."""
_MOST: Final = 100
"""Links, and sessions, that are remembered."""
_HINT: Final = "run `nearfar serve console` again, or press Enter in its terminal, for a new link"


@dataclass(slots=True)
class BrowserSession:
    """One browser that is logged in."""

    host: str
    """Value of the `Host` header at the login: the cookie counts there alone."""
    ends: float
    csrf: str = field(default_factory=lambda: secrets.token_urlsafe(24))
    """Every form that changes something carries it: no other page can know it."""

    def check(self, token: object) -> None:
        """Raise `PermissionDenied` unless a form carries the token of this session."""
        if not isinstance(token, str) or not hmac.compare_digest(token.encode(), self.csrf.encode()):
            raise PermissionDenied("the form does not come from this console", hint="reload the page, and send it again")


class BrowserLogins:
    """The links that wait to be opened, and the sessions that they have become.

    Args:
        now: seconds that never run backwards.
    """

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._links: dict[str, float] = {}
        self._sessions: dict[str, BrowserSession] = {}

    def link(self) -> str:
        """Return the secret of a new link, which can be opened once, and within `LINK_SECONDS`."""
        secret = secrets.token_urlsafe(32)
        self._links[secret] = self._now() + LINK_SECONDS
        _drop_oldest(self._links)
        return secret

    def enter(self, secret: str, host: str) -> str:
        """Return the cookie of a new session for a link's secret. Raises `Unauthenticated` for one that is used, expired or unknown."""
        ends = self._links.pop(secret, None)
        if ends is None:
            raise Unauthenticated("this link was used already, or never was one", hint=_HINT)
        if ends < self._now():
            raise Unauthenticated("this link has expired", hint=_HINT)
        cookie = secrets.token_urlsafe(32)
        self._sessions[cookie] = BrowserSession(host, self._now() + SESSION_SECONDS)
        _drop_oldest(self._sessions)
        return cookie

    def session(self, cookie: str | None, host: str) -> BrowserSession:
        """Return the session of a cookie. Raises `Unauthenticated` for none, one that has ended, and one that was made for another host."""
        found = self._sessions.get(cookie or "")
        if found is None or found.host != host:
            raise Unauthenticated("this browser is not logged in", hint=_HINT)
        if found.ends < self._now():
            del self._sessions[cookie or ""]
            raise Unauthenticated("the session has ended", hint=_HINT)
        return found

    def is_in(self, cookie: str | None, host: str) -> bool:
        """The browser with this cookie is still logged in."""
        with suppress(Unauthenticated):
            return bool(self.session(cookie, host))
        return False

    def leave(self, cookie: str | None) -> None:
        """End the session of a cookie."""
        self._sessions.pop(cookie or "", None)


def _drop_oldest(kept: dict[str, float] | dict[str, BrowserSession]) -> None:
    while len(kept) > _MOST:
        kept.pop(next(iter(kept)))
