"""The demo's HTML report: one self-contained page with the picture, the table and every task."""

from collections.abc import Sequence
from html import escape

from ...protocols import Prices, Side
from ..html_page import page, table
from ..policy import Strategy
from .comparison import Outcome, Row, findings

_COLOURS = {Strategy.DEVICE: "#2a9d8f", Strategy.CLOUD: "#3d5a80", Strategy.CASCADE: "#e76f51"}
_WIDTH, _HEIGHT = 640, 340
_LEFT, _RIGHT, _TOP, _BOTTOM = 64, 130, 24, 52
_LABEL_WIDTH, _LABEL_HEIGHT = 110, 16


def render(rows: Sequence[Row], reference: Prices, reference_model: str) -> str:
    """The page for a finished comparison.

    Args:
        rows: one per strategy, over the same tasks.
        reference: the price at which far tokens are counted; the far model of the demo itself costs nothing.
        reference_model: whose price that is.
    """
    figures = findings(rows)
    price = f"${reference.input} in / ${reference.output} out per million tokens ({escape(reference_model)}, {reference.as_of})"
    body = f"""<h1>Nearfar demo: one set of tasks, three ways to serve it</h1>
<p>{len(rows[0].outcomes)} unseen search tasks of one to four hops. The near model runs on this machine; the far one runs behind a gRPC
gateway in a process of its own. The cascade keeps <strong>{figures["cascade_score_share"]:.0%}</strong> of the far model's score
with <strong>{figures["cascade_far_token_share"]:.0%}</strong> of its tokens.</p>
{_picture(rows)}
<h2>Strategies</h2>
{_table(rows)}
<p class="note">Dollars: far tokens at {price}; source: <a href="{escape(reference.source)}">{escape(reference.source)}</a>.
Both models of the demo ran here and cost nothing. Intervals: 95 % (Wilson).</p>
<h2>Score by number of hops</h2>
{_hops_table(rows)}
<h2>Every task</h2>
{_tasks_table(rows)}"""
    return page("Nearfar demo", body)


def _picture(rows: Sequence[Row]) -> str:
    """Score against far tokens, with intervals: up and to the left is better."""
    most = max(row.far_tokens for row in rows) or 1
    marks = "\n".join(_mark(row, most, _label_shift(rows[:number], row, most)) for number, row in enumerate(rows))
    return f"""<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="Score of each strategy against the far tokens it used">
{_axes(most)}
{marks}
</svg>"""


def _axes(most: int) -> str:
    bottom, right = _HEIGHT - _BOTTOM, _WIDTH - _RIGHT
    lines = [f'<path d="M{_LEFT} {_TOP}V{bottom}H{right}" fill="none" stroke="currentColor"/>']
    for share in (0.0, 0.25, 0.5, 0.75, 1.0):
        x, y = _x(share), _y(share)
        lines.append(f'<path d="M{_LEFT} {y:.1f}H{right}" stroke="currentColor" stroke-opacity=".15"/>')
        lines.append(f'<text x="{_LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{share:.0%}</text>')
        lines.append(f'<text x="{x:.1f}" y="{bottom + 20}" text-anchor="middle">{share * most:,.0f}</text>')
    lines.append(f'<text x="{(_LEFT + right) / 2}" y="{_HEIGHT - 8}" text-anchor="middle">far tokens</text>')
    lines.append(f'<text x="{_LEFT}" y="{_TOP - 8}" text-anchor="middle">right answers</text>')
    return "\n".join(lines)


def _label_shift(earlier: Sequence[Row], row: Row, most: int) -> int:
    """How far down a label must move to stay clear of those before it."""
    near = [
        other
        for other in earlier
        if abs(_x(other.far_tokens / most) - _x(row.far_tokens / most)) < _LABEL_WIDTH
        and abs(_y(other.score) - _y(row.score)) < _LABEL_HEIGHT
    ]
    return _LABEL_HEIGHT * len(near)


def _mark(row: Row, most: int, label_shift: int) -> str:
    x, y = _x(row.far_tokens / most), _y(row.score)
    low, high = (_y(bound) for bound in row.interval)
    colour = _COLOURS[row.strategy]
    return (
        f'<path d="M{x:.1f} {low:.1f}V{high:.1f}" stroke="{colour}" stroke-width="2" stroke-opacity=".6"/>'
        f'<circle cx="{x:.1f}" cy="{y:.1f}" r="7" fill="{colour}"/>'
        f'<text x="{x + 12:.1f}" y="{y + 4 + label_shift:.1f}">{row.strategy.value} {row.score:.0%}</text>'
    )


def _x(share: float) -> float:
    return _LEFT + share * (_WIDTH - _LEFT - _RIGHT)


def _y(share: float) -> float:
    return _HEIGHT - _BOTTOM - share * (_HEIGHT - _TOP - _BOTTOM)


def _table(rows: Sequence[Row]) -> str:
    head = ["strategy", "score", "95 %", "on the device", "far calls", "near tokens", "far tokens", "dollars", "seconds"]
    body = [
        [
            row.strategy.value,
            f"{row.score:.1%}",
            f"{row.interval[0]:.0%} to {row.interval[1]:.0%}",
            f"{row.on_device:.0%}",
            f"{row.far_calls:,}",
            f"{row.near_tokens:,}",
            f"{row.far_tokens:,}",
            f"${row.dollars:.4f}",
            f"{row.seconds:.1f}",
        ]
        for row in rows
    ]
    return table(head, [[escape(cell) for cell in line] for line in body])


def _hops_table(rows: Sequence[Row]) -> str:
    hops = sorted({outcome.hops for outcome in rows[0].outcomes})
    body = [[row.strategy.value, *(_share_right(row, count) for count in hops)] for row in rows]
    return table(["strategy", *(f"{count} hop{'s' if count > 1 else ''}" for count in hops)], body)


def _share_right(row: Row, hops: int) -> str:
    right = [outcome.correct for outcome in row.outcomes if outcome.hops == hops]
    return f"{sum(right)} of {len(right)}"


def _tasks_table(rows: Sequence[Row]) -> str:
    body = []
    for same_task in zip(*(row.outcomes for row in rows), strict=True):
        first = same_task[0]
        body.append([escape(first.question), escape(first.expected), *(_answer(outcome) for outcome in same_task)])
    return table(["question", "expected", *(row.strategy.value for row in rows)], body, text_columns=True)


def _answer(outcome: Outcome) -> str:
    kind = "right" if outcome.correct else "wrong"
    where = {Side.NEAR: "near", Side.FAR: "far", None: "failed"}[outcome.side]
    return f'<span class="{kind}">{escape(outcome.answer)}</span> <span class="note">({where})</span>'
