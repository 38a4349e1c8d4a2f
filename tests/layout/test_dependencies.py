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
COMPOSITION_ROOT = "orchestrator/compose/agents.py"


@pytest.mark.parametrize("module", modules(), ids=lambda module: module.name)
def test_module_knows_only_the_folders_below_it(module: Module) -> None:
    allowed = ALLOWED[module.folder] | ({"device", "cloud"} if module.name == COMPOSITION_ROOT else set())
    assert module.folders_it_names() <= allowed


def test_the_composition_root_is_where_device_and_cloud_are_met() -> None:
    (root,) = (module for module in modules() if module.name == COMPOSITION_ROOT)
    assert root.folders_it_names() == {"protocols", "device", "cloud"}


@pytest.mark.parametrize("module", modules(), ids=lambda module: module.name)
def test_no_module_imports_a_bare_folder(module: Module) -> None:
    absolute = [node for node in ast.walk(module.tree) if isinstance(node, ast.ImportFrom) and not node.level]
    names = {(node.module or "").partition(".")[0] for node in absolute}
    names |= {alias.name.partition(".")[0] for node in ast.walk(module.tree) if isinstance(node, ast.Import) for alias in node.names}
    assert not names & set(FOLDERS)
    assert "nearfar" not in names, "imports between the four folders are relative"


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
