"""Draw each strategy's graph into docs/strategies.md, behind its `<!-- graph: NAME -->`.

python scripts/draw_graphs.py
"""

import re
from pathlib import Path

from nearfar import Hybrid
from nearfar.protocols import ScriptedAgent

PAGE = Path(__file__).parents[1] / "docs" / "strategies.md"
_PICTURE = re.compile(r"<!-- graph: (\w+) -->\n(?:```mermaid\n.*?^```\n)?", re.DOTALL | re.MULTILINE)


def drawn(page: str) -> str:
    """The page with every picture as the graph itself draws it."""
    hybrid = Hybrid(near=ScriptedAgent([], name="near"))

    def picture(match: re.Match[str]) -> str:
        mermaid = hybrid.graph_of(match[1]).get_graph().draw_mermaid()
        return f"<!-- graph: {match[1]} -->\n```mermaid\n{mermaid.strip()}\n```\n"

    return _PICTURE.sub(picture, page)


def pictured(page: str) -> list[str]:
    """The strategies that the page has pictures of."""
    return _PICTURE.findall(page)


if __name__ == "__main__":
    PAGE.write_text(drawn(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
