"""The folders of the user's data, and the Python of child processes."""

from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from nearfar import ConfigError, Hybrid
from nearfar.orchestrator.compose import model_path
from nearfar.protocols.system import cache_folder, data_folder, state_folder

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


@pytest.mark.parametrize(
    ("find", "variable"), [(data_folder, "XDG_DATA_HOME"), (state_folder, "XDG_STATE_HOME"), (cache_folder, "XDG_CACHE_HOME")]
)
def test_a_relative_folder_of_the_system_is_ignored_as_its_specification_demands(find: Finder, variable: str) -> None:
    assert find({variable: "here"}) == find({variable: "~/here"}) == find({})


def test_a_user_without_a_home_folder_is_told_what_to_set(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(_: int) -> object:
        raise KeyError("uid not found")

    monkeypatch.delenv("HOME")
    monkeypatch.setattr("pwd.getpwuid", unknown)
    with pytest.raises(ConfigError, match="no home folder") as caught:
        data_folder({})
    assert caught.value.hint == "set HOME, or NEARFAR_HOME to a folder for all that Nearfar keeps"
    assert data_folder({"NEARFAR_HOME": "/mine"}) == Path("/mine")


def test_the_folder_of_an_unknown_user_is_refused() -> None:
    with pytest.raises(ConfigError, match="that user's folder is not known"):
        data_folder({"NEARFAR_HOME": "~no-such-user/mine"})
    with pytest.raises(ConfigError, match="that user's folder is not known"):
        model_path("~no-such-user/model.gguf")


@pytest.mark.parametrize("program", [None, "", "/no/such/python"])
def test_a_program_that_embeds_python_is_told_why_no_worker_starts(program: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.executable", program)
    with Hybrid(near="near", far="far") as hybrid:
        for mode in ("only_on_device", "only_in_cloud"):
            with pytest.raises(ConfigError, match="child processes cannot be started") as caught:
                hybrid.run_sync("What is the employer of Ines Falk?", mode=mode, sensitivity="public")
            assert caught.value.hint == "set sys.executable to a Python that has nearfar"
