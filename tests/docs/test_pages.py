"""The pages hang together: links lead somewhere, configuration is valid, the README stays short."""

from pathlib import Path

import pytest
from pages import ROOT, Block, anchors_of, blocks, links_of, pages

from nearfar.orchestrator.compose.config import parse_config
from nearfar.orchestrator.lab.study import parse_study_file


@pytest.mark.parametrize("page", pages(), ids=lambda page: page.name)
def test_links_lead_to_files_and_headings(page: Path) -> None:
    for link in links_of(page):
        if link.startswith(("http://", "https://", "mailto:")):
            continue
        name, _, anchor = link.partition("#")
        target = (page.parent / name).resolve() if name else page
        assert target.exists(), link
        assert not anchor or anchor in anchors_of(target), link


@pytest.mark.parametrize("page", sorted((ROOT / "docs").glob("*.md")), ids=lambda page: page.name)
def test_every_page_is_linked_from_the_index(page: Path) -> None:
    index = ROOT / "docs" / "index.md"
    assert page == index or page.name in links_of(index)


@pytest.mark.parametrize("block", blocks("toml"), ids=lambda block: block.name)
def test_configuration_is_valid(block: Block) -> None:
    """Of a study on the page about sweeps, of `nearfar.toml` elsewhere."""
    parse = parse_study_file if block.page.name == "sweep.md" else parse_config
    assert parse(block.code, block.name).model_fields_set


def test_the_readme_is_short_and_shows_both_commands_first() -> None:
    lines = (ROOT / "README.md").read_text(encoding="utf-8").splitlines()
    assert len(lines) <= 150
    assert {"make demo", "make test"} <= {line.removeprefix("$ ").partition("#")[0].strip() for line in lines[:20]}
