"""The page on security lists every limit of the wire with its value and reason, as they stand in the code."""

import ast
import inspect
from pathlib import Path

from pages import ROOT

from nearfar.protocols import limits

PAGE = (ROOT / "docs" / "security.md").read_text(encoding="utf-8")
_MEBIBYTE, _KIBIBYTE = 2**20, 2**10


def rows() -> list[str]:
    """The table's rows, in the order of the code."""
    body = ast.parse(Path(inspect.getfile(limits)).read_text(encoding="utf-8")).body
    found = []
    for node, following in zip(body, [*body[1:], None], strict=True):
        if not isinstance(node, ast.AnnAssign) or not isinstance(node.target, ast.Name) or node.target.id.startswith("_"):
            continue
        is_told = isinstance(following, ast.Expr) and isinstance(following.value, ast.Constant)
        reason = " ".join(str(following.value.value).split()) if is_told else ""  # type: ignore[union-attr]  # as has just been seen
        assert reason, f"{node.target.id} has no reason"
        found.append(f"| `{node.target.id}` | {written(node.target.id, getattr(limits, node.target.id))} | {reason} |")
    return found


def written(name: str, value: float) -> str:
    if name.endswith("_SECONDS"):
        return f"{value:g} s"
    if isinstance(value, int) and value >= _KIBIBYTE and any(unit in name for unit in ("BYTES", "LENGTH", "CHARACTERS")):
        for size, unit in ((_MEBIBYTE, "Mi"), (_KIBIBYTE, "Ki")):
            if not value % size:
                return f"{value // size} {unit}{'B' if 'BYTES' in name else ''}"
    return f"{value:,}"


def test_table_is_what_the_code_says() -> None:
    listed = [line for line in PAGE.splitlines() if line.startswith("| `") and line.split("`")[1].isupper()]
    assert listed == rows()
