"""Who may know whom, read from the import statements."""

import ast

import pytest
from source_tree import FOLDERS, ROOT, Module, modules

ALLOWED = {
    "protocols": set[str](),
    "device": {"protocols"},
    "cloud": {"protocols"},
    "orchestrator": {"protocols"},
}
COMPOSITION = "orchestrator/compose/"


def test_a_folder_knows_only_those_below_it() -> None:
    offenders = {module.name: beyond for module in modules() if (beyond := module.folders_it_names() - _allowed(module))}
    assert offenders == {}


def _allowed(module: Module) -> set[str]:
    return ALLOWED[module.folder] | ({"device", "cloud"} if module.name.startswith(COMPOSITION) else set())


def test_device_and_cloud_are_met_in_compose() -> None:
    named = {name for module in modules() if module.name.startswith(COMPOSITION) for name in module.folders_it_names()}
    assert named == {"protocols", "device", "cloud"}


def test_no_module_imports_a_bare_folder_or_itself_by_an_absolute_name() -> None:
    offenders = {module.name: wrong for module in modules() if (wrong := _absolute(module) & {*FOLDERS, "nearfar"})}
    assert offenders == {}, "imports between the four folders are relative"


def _absolute(module: Module) -> set[str]:
    nodes = list(ast.walk(module.tree))
    named = [node.module or "" for node in nodes if isinstance(node, ast.ImportFrom) and not node.level]
    named += [alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names]
    return {name.partition(".")[0] for name in named}


@pytest.mark.parametrize(
    ("statement", "named"),
    [
        ("from ..cloud.prices import reference_price", {"cloud"}),
        ("from .. import device", {"device"}),
        ("import nearfar.device.llama", {"device"}),
        ("from nearfar.cloud import config", {"cloud"}),
        ("files('nearfar.device')", {"device"}),
        ("from .events import TaskEvent", set[str]()),
        ("import json", set[str]()),
    ],
)
def test_every_way_to_name_a_folder_is_seen(statement: str, named: set[str], monkeypatch: pytest.MonkeyPatch) -> None:
    tree = ast.parse(statement)
    monkeypatch.setattr(Module, "tree", tree)
    assert Module(ROOT / "orchestrator" / "example.py").folders_it_names() == named
