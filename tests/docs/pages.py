"""The documentation as the tests see it: pages, their code blocks and their links."""

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
_FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"(?<!!)\[[^\]]*\]\(([^)\s]+)\)")
_HEADING = re.compile(r"^#{1,6} +(.+)$", re.MULTILINE)


@dataclass(frozen=True)
class Block:
    """A fenced code block."""

    page: Path
    line: int
    language: str
    code: str

    @property
    def name(self) -> str:
        return f"{self.page.name}:{self.line}"

    @property
    def file_name(self) -> str | None:
        """The name in a first line such as `# agent.py`."""
        match = re.match(r"# ([\w/-]+\.py)\n", self.code)
        return match[1] if match else None


def pages() -> list[Path]:
    """Every page that users read."""
    own = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")]
    return [*own, *sorted((ROOT / "docs").glob("*.md")), *sorted((ROOT / "demos").glob("**/README.md"))]


def blocks(language: str) -> list[Block]:
    """The code blocks in one language, over all pages."""
    return [block for page in pages() for block in blocks_of(page) if block.language == language]


def blocks_of(page: Path) -> list[Block]:
    text = page.read_text(encoding="utf-8")
    return [Block(page, text.count("\n", 0, match.start()) + 1, match[1], match[2]) for match in _FENCE.finditer(text)]


def links_of(page: Path) -> list[str]:
    return _LINK.findall(_prose(page))


def anchors_of(page: Path) -> set[str]:
    """The anchors that GitHub gives the page's headings."""
    headings = _HEADING.findall(_prose(page))
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}


def _prose(page: Path) -> str:
    return _FENCE.sub("", page.read_text(encoding="utf-8"))
