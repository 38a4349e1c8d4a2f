"""Translate a selection into a condition in SQL, on the columns of `items`."""

import math
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from ....protocols.namespaces import Namespace
from ....protocols.tiers import Tier
from ..item import Principal
from ..selection import Comparison, Condition, Selection
from .rows import as_json, number_of

if TYPE_CHECKING:
    from ...storage.postgres import Connection

_Term = tuple[str, list[object]]
"""A condition with its parameters."""

_ORDERS: Final = {
    Comparison.GREATER: ">",
    Comparison.GREATER_OR_EQUAL: ">=",
    Comparison.LESS: "<",
    Comparison.LESS_OR_EQUAL: "<=",
}


class Where:
    """The condition `sql` with its `parameters`."""

    def __init__(self, selection: Selection) -> None:
        terms: list[_Term] = [
            ("content IS NOT NULL", []),
            ("(expires_at IS NULL OR expires_at > %s)", [selection.now]),
            below([selection.prefix]),
        ]
        if selection.key_prefix:
            terms.append(("starts_with(key, %s)", [selection.key_prefix]))
        if selection.valid_at is not None:
            terms.append(("(valid_from IS NULL OR valid_from <= %s)", [selection.valid_at]))
            terms.append(("(invalid_from IS NULL OR invalid_from > %s)", [selection.valid_at]))
        if selection.principal is not None:
            terms += _meant_for(selection.principal)
        terms += map(_meets, selection.conditions)
        self.sql = " AND ".join(sql for sql, _ in terms)
        self.parameters = [parameter for _, parameters in terms for parameter in parameters]


def is_small(connection: "Connection", where: Where, most: int) -> bool:
    """Return whether the condition selects at most `most` items."""
    statement = f"SELECT count(*) FROM (SELECT FROM items WHERE {where.sql} LIMIT %s) AS selected"
    return connection.execute(statement, [*where.parameters, most + 1]).fetchone() != (most + 1,)


def below(prefixes: Iterable[Namespace]) -> _Term:
    """Return the condition that `namespace` is in or below any of the prefixes."""
    places = list(prefixes)
    if () in places:
        return "TRUE", []
    # The index finds numbers, which several namespaces may share; therefore names are compared, too.
    terms = " OR ".join(f"prefixes @> ARRAY[%s::bigint] AND namespace[1:{len(place)}] = %s::text[]" for place in places)
    return f"({terms or 'FALSE'})", [parameter for place in places for parameter in (number_of(place), list(place))]


def _meant_for(principal: Principal) -> list[_Term]:
    user, device = principal.user, principal.device
    allowed = "(tier = %s OR owner = %s AND (tier = %s OR tier = %s AND device = %s))"
    return [
        ("trust >= %s", [principal.minimum_trust]),
        ("TRUE", []) if principal.believes_others else ("owner IN ('', %s)", [user]),
        (allowed, [Tier.SHARED, user, Tier.USER, Tier.DEVICE, device]),
        below(principal.prefixes),
    ]


def _meets(condition: Condition) -> _Term:
    # Unlike `#>`, this operator never reads a name as an index into a list.
    fields = ["(fields" + " -> %s::text" * len(path) + ")" for path in condition.paths]
    field = fields[0] if len(fields) == 1 else f"coalesce({', '.join(fields)})"
    path: list[object] = [name for path in condition.paths for name in path]
    match condition.comparison:
        case Comparison.EQUAL:
            return _equals(field, path, condition)
        case Comparison.NOT_EQUAL:
            operand = as_json(condition.operand)
            return ("TRUE", []) if operand is None else (f"{_present(field)} <> %s::jsonb", [*path, operand])
        case order:
            return _compares(field, path, _ORDERS[order], condition.operand)


def _equals(field: str, path: list[object], condition: Condition) -> _Term:
    text = as_json(condition.operand)
    if text is None:
        return "FALSE", []
    if condition.operand is None:
        return f"{_present(field)} = %s::jsonb", [*path, text]
    containing = [_object(names, text) for names in condition.paths]
    # The index finds containing values, which are not always equal.
    contains = " OR ".join("fields @> %s::jsonb" for _ in containing)
    return f"(({contains}) AND {field} = %s::jsonb)", [*containing, *path, text]


def _present(field: str) -> str:
    """Return the expression of the field, or null if it is missing."""
    return f"coalesce({field}, 'null'::jsonb)"


def _object(path: tuple[str, ...], text: str) -> str:
    for name in reversed(path):
        text = f"{{{as_json(name)}: {text}}}"
    return text


def _compares(field: str, path: list[object], order: str, operand: object) -> _Term:
    if isinstance(operand, str):
        term = f"""(jsonb_typeof({field}) = 'string' AND ({field} #>> '{{}}') COLLATE "C" {order} %s)"""
        return term, [*path, *path, operand]
    if isinstance(operand, int | float) and not isinstance(operand, bool) and not math.isnan(operand):
        # As text, since a float8 loses digits when it is cast to numeric.
        term = f"(CASE WHEN jsonb_typeof({field}) = 'number' THEN {field}::numeric {order} %s::numeric ELSE FALSE END)"
        return term, [*path, *path, repr(operand)]
    return "FALSE", []
