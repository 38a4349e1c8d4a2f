"""A self-contained HTML page for the reports of demo and sweep. It loads nothing, runs no script, and supports dark mode."""

from collections.abc import Sequence
from html import escape

_STYLE = """
:root { color-scheme: light dark; --line: #8884; --soft: #777 }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 62rem; margin: 2rem auto; padding: 0 1rem }
h1 { font-size: 1.5rem } h2 { font-size: 1.1rem; margin-top: 2rem } h3 { font-size: 1rem }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums }
caption { text-align: left; color: var(--soft); padding: .3rem 0 }
th, td { padding: .3rem .6rem; border-bottom: 1px solid var(--line); text-align: right; vertical-align: top }
th:first-child, td:first-child, td.text, th.text { text-align: left }
td.text { max-width: 26rem } .wrong { color: #c1121f } .right { color: #2a9d8f }
svg { width: 100%; height: auto; max-width: 44rem } svg text { fill: currentColor; font-size: 13px }
.note { color: var(--soft) } .wide { overflow-x: auto }
@media (prefers-color-scheme: dark) { .wrong { color: #ff6b6b } }
"""


def page(title: str, body: str, *, style: str = "") -> str:
    """Return a document with a body of ready-made HTML."""
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<link rel="icon" href="data:,">
<title>{escape(title)}</title>
<style>{_STYLE}{style}</style>
</head>
<body>
{body}
</body>
</html>
"""


def table(head: Sequence[str], body: Sequence[Sequence[str]], *, text_columns: bool = False, caption: str = "") -> str:
    """Return a table of ready-made HTML cells."""
    css = ' class="text"' if text_columns else ""
    title = f"<caption>{escape(caption)}</caption>" if caption else ""
    header = "".join(f'<th scope="col"{css}>{escape(name)}</th>' for name in head)
    lines = "\n".join("<tr>" + "".join(f"<td{css}>{cell}</td>" for cell in line) + "</tr>" for line in body)
    return f"<table>{title}<thead><tr>{header}</tr></thead><tbody>\n{lines}\n</tbody></table>"
