"""The folders of the user's data."""

from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from nearfar.protocols.lazy import cache_folder, data_folder, state_folder

Finder = Callable[[Mapping[str, str]], Path]


@pytest.mark.parametrize(("find", "inside"), [(data_folder, ""), (state_folder, ""), (cache_folder, "cache")])
def test_one_variable_names_all_folders(find: Finder, inside: str) -> None:
    others = {"XDG_DATA_HOME": "/other", "XDG_STATE_HOME": "/other", "XDG_CACHE_HOME": "/other"}
    assert find({"NEARFAR_HOME": "/mine", **others}) == Path("/mine", inside)
    assert find({"NEARFAR_HOME": "~/mine"}) == Path.home() / "mine" / inside


@pytest.mark.parametrize(
    ("find", "variable", "usual"),
    [
        (data_folder, "XDG_DATA_HOME", ".local/share"),
        (state_folder, "XDG_STATE_HOME", ".local/state"),
        (cache_folder, "XDG_CACHE_HOME", ".cache"),
    ],
)
def test_without_it_they_are_where_the_system_has_them(find: Finder, variable: str, usual: str) -> None:
    assert find({variable: "/given"}) == Path("/given/nearfar")
    assert find({variable: ""}) == find({}) == Path.home() / usual / "nearfar"
