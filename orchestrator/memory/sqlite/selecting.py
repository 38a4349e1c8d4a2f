"""Translate a selection into a condition in SQL."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Final

from ....protocols.namespaces import Namespace
from ....protocols.tiers import Tier
from ...storage.sqlite import Connection
from ..item import Principal
from ..selection import Condition, Selection, meets
from .rows import end_of_prefix, namespace_range, value_of

_conditions: Final[ContextVar[tuple[Condition, ...]]] = ContextVar("conditions of the query that runs")


def add_functions(connection: Connection) -> None:
    """Add the SQL function that `Where` uses: conditions on values are checked in Python, where JSON has exactly one meaning."""
    connection.create_function("meets_conditions", 1, _meets_conditions, deterministic=True)


class Where:
    """The condition `sql` with its `parameters`, on columns of `items`. Run queries with it within `active`."""

    def __init__(self, selection: Selection) -> None:
        self.parameters: list[object] = []
        self._terms = ["NOT is_deleted"]
        self._selection = selection
        self._add("(expires_at IS NULL OR expires_at > ?)", selection.now)
        self._add_prefix(selection.prefix)
        self._add_key_prefix(selection.key_prefix)
        if selection.valid_at is not None:
            self._add("(valid_from IS NULL OR valid_from <= ?)", selection.valid_at)
            self._add("(invalid_from IS NULL OR invalid_from > ?)", selection.valid_at)
        if selection.principal is not None:
            self._add_principal(selection.principal)
        if selection.conditions:
            self._add("meets_conditions((SELECT content FROM contents WHERE contents.item = items.item))")
        self.sql = " AND ".join(self._terms)

    @contextmanager
    def active(self) -> Iterator[None]:
        token = _conditions.set(self._selection.conditions)
        try:
            yield
        finally:
            _conditions.reset(token)

    def _add(self, term: str, *parameters: object) -> None:
        self._terms.append(term)
        self.parameters.extend(parameters)

    def _add_prefix(self, prefix: Namespace) -> None:
        if prefix:
            self._add("namespace >= ? AND namespace < ?", *namespace_range(prefix))

    def _add_key_prefix(self, prefix: str) -> None:
        if not prefix:
            return
        self._add("key >= ?", prefix)
        end = end_of_prefix(prefix)
        if end is not None:
            self._add("key < ?", end)

    def _add_principal(self, principal: Principal) -> None:
        self._add("trust >= ?", principal.minimum_trust)
        user, device = principal.user, principal.device
        if not principal.believes_others:
            self._add("user IN ('', ?)", user)
        self._add("(tier = ? OR (user = ? AND (tier = ? OR (tier = ? AND device = ?))))", Tier.SHARED, user, Tier.USER, Tier.DEVICE, device)
        if () in principal.prefixes:
            return
        ranges = [namespace_range(prefix) for prefix in principal.prefixes]
        allowed = " OR ".join("(namespace >= ? AND namespace < ?)" for _ in ranges) or "FALSE"
        self._add(f"({allowed})", *(bound for bounds in ranges for bound in bounds))


def _meets_conditions(content: bytes) -> bool:
    value = value_of(content)
    return all(meets(condition, value) for condition in _conditions.get())
