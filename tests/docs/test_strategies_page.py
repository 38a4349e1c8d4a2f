"""The page of strategies shows every strategy, with the picture that its graph draws."""

import re
from itertools import pairwise

import pytest
from pages import ROOT

from nearfar import Strategy
from nearfar.orchestrator.strategies.builders import BUILDERS
from scripts.draw_graphs import drawn, pictured

PAGE = (ROOT / "docs" / "strategies.md").read_text(encoding="utf-8")
HEADINGS = [match.start() for match in re.finditer(r"^## ", PAGE, re.MULTILINE)]
SECTIONS = [PAGE[start:end] for start, end in pairwise([*HEADINGS, len(PAGE)])]


def test_pictures_are_those_of_the_graphs() -> None:
    assert drawn(PAGE) == PAGE, "run `make pictures`"


@pytest.mark.parametrize("strategy", Strategy)
def test_every_strategy_has_a_heading(strategy: Strategy) -> None:
    assert any(f"`{strategy}`" in section.partition("\n")[0] for section in SECTIONS)


def test_every_graph_is_pictured_once() -> None:
    shapes = [BUILDERS[Strategy(name)] for name in pictured(PAGE)]
    assert len(shapes) == len(set(shapes))
    assert set(shapes) == set(BUILDERS.values())


def test_a_picture_that_is_out_of_date_is_noticed() -> None:
    assert drawn(PAGE.replace("plan --> act;", "plan --> judge;")) == PAGE
