"""A user's world by name, and what is said where it is none."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from nearfar.orchestrator.lab.worlds import Episode, WorldTask
from nearfar.orchestrator.lab.worlds.loading import SHIPPED, draw_tasks, open_world
from nearfar.protocols import ConfigError, NotFound

TASK = WorldTask(identifier="a", prompt="Why?", kind="any", difficulty=1)


class Drawing:
    """A world that draws what it is told to."""

    name = "drawing"

    def __init__(self, drawn: object) -> None:
        self._drawn = drawn

    def tasks(self, count: int, seed: int) -> Sequence[WorldTask]:
        if isinstance(self._drawn, Exception):
            raise self._drawn
        return self._drawn  # type: ignore[return-value]  # a user's world may return anything

    def reset(self, task: WorldTask) -> Episode:
        raise NotFound("never reached")


@pytest.mark.parametrize("name", SHIPPED)
def test_the_shipped_worlds_open_by_name(name: str) -> None:
    world = open_world(name)
    assert world.name == name
    assert [task.identifier for task in draw_tasks(world, 3, 1)] == [task.identifier for task in draw_tasks(world, 5, 1)][:3]


def test_a_users_world_opens_by_module_and_factory() -> None:
    assert open_world("secrets_world:SecretsWorld").name == "secrets"


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("serach", "no world 'serach'"),
        ("secrets_world", "no world"),
        (":SecretsWorld", "no world"),
        ("secrets_wrold:SecretsWorld", "No module named"),
        ("secrets_world:World", "no function or class 'World'|is no World"),
        ("secrets_world:GATE", "no function or class 'GATE'"),
        ("secrets_world:not_agents", "no World: it has no name and no tasks and no reset"),
        ("broken_module:World", "fails while it is loaded: ZeroDivisionError"),
        ("broken_factory:World", "fails while it is made: KeyError"),
    ],
)
def test_what_is_no_world_is_said(name: str, problem: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "broken_module.py").write_text("1 / 0")
    (tmp_path / "broken_factory.py").write_text("def World():\n    return {}['missing']\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(ConfigError, match=problem):
        open_world(name)


@pytest.mark.parametrize(
    ("drawn", "problem"),
    [
        ([], "draws no tasks"),
        (["a task"], "is no WorldTask"),
        ([TASK, TASK], "same identifier"),
        (RuntimeError("out of ideas"), "RuntimeError: out of ideas"),
    ],
)
def test_a_world_that_breaks_its_contract_is_named(drawn: object, problem: str) -> None:
    with pytest.raises(ConfigError, match=f"'drawing' .*{problem}"):
        draw_tasks(Drawing(drawn), 3, 1)


def test_a_worlds_own_error_is_passed_on() -> None:
    with pytest.raises(NotFound):
        draw_tasks(Drawing(NotFound("no data")), 3, 1)
