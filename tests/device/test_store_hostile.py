"""The model store under attack: hubs that name places outside of the cache, files that are none, links, an index that points elsewhere."""

import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

pytest.importorskip("httpx", reason="fetching models needs httpx: pip install 'nearfar[models]'")
pytest.importorskip("gguf", reason="writes models: pip install 'nearfar[test]'")
from fake_hub import REPOSITORY, FakeHub, fake_hub
from tiny_gguf import write_tiny_gguf

from nearfar.device.store import ModelStore
from nearfar.device.store.places import HubSettings
from nearfar.protocols import NearfarError

MODEL = "model-Q8_0.gguf"
REFERENCE = f"hf:{REPOSITORY}:Q8_0"
CANARY = "precious"
PLACES = ["../../../../evil", "/tmp/nearfar-evil", "..", ".", "a/b", "evil\n", "\x1b[31mevil", "a\\..\\b", "x" * 5000, "blobs/../../x"]
NAMES = [f"{folder}/m-Q8_0.gguf" for folder in ("..", "/tmp", "a/../..", "a/./b", "a\\..\\..")]


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    return write_tiny_gguf(tmp_path_factory.mktemp("weights") / "w.gguf").read_bytes()


@pytest.fixture
def hub(weights: bytes) -> Iterator[FakeHub]:
    with fake_hub() as hub:
        hub.files[MODEL] = weights
        yield hub


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """The only folder that the store may write to."""
    return tmp_path / "home"


@pytest.fixture
def store(home: Path, hub: FakeHub) -> ModelStore:
    return ModelStore(
        home / "nearfar",
        HubSettings(endpoint=hub.endpoint, hosts=("localhost",), token=None, cache=home / "hub", is_offline=False, pause=0),
    )


def refused_without_a_trace(store: ModelStore, home: Path) -> None:
    with pytest.raises(NearfarError):
        store.pull(REFERENCE)
    assert [path for path in home.parent.rglob("*") if home not in (path, *path.parents)] == []
    assert store.models() == []


@pytest.mark.parametrize("place", PLACES)
def test_a_checksum_that_is_a_place_is_refused(store: ModelStore, home: Path, hub: FakeHub, place: str) -> None:
    hub.claimed[MODEL] = place
    refused_without_a_trace(store, home)


@pytest.mark.parametrize("place", ["", *PLACES])
def test_a_commit_that_is_a_place_is_refused(store: ModelStore, home: Path, monkeypatch: pytest.MonkeyPatch, place: str) -> None:
    monkeypatch.setattr(FakeHub, "commit", place)
    refused_without_a_trace(store, home)


@pytest.mark.parametrize("name", [*NAMES, "\x1b[31m-Q8_0.gguf", "a\n-Q8_0.gguf", "a\0-Q8_0.gguf"])
def test_a_file_that_leads_elsewhere_or_cannot_be_shown_is_refused(
    store: ModelStore, home: Path, hub: FakeHub, weights: bytes, name: str
) -> None:
    hub.files = {name: weights}
    refused_without_a_trace(store, home)


@pytest.mark.parametrize("size", [1, 10**15, -1])
def test_a_hub_that_lies_about_sizes_fills_no_disk(store: ModelStore, home: Path, hub: FakeHub, size: int) -> None:
    hub.claimed_bytes = size
    refused_without_a_trace(store, home)
    assert sum(path.stat().st_size for path in home.rglob("*") if path.is_file()) <= len(hub.files[MODEL])


def test_links_in_the_cache_are_not_written_through(store: ModelStore, home: Path, hub: FakeHub) -> None:
    victim = home.parent / "victim"
    victim.write_text(CANARY)
    repository = home / "hub" / f"models--{REPOSITORY.replace('/', '--')}"
    for folder in (repository / "blobs", repository / "blobs" / ".incomplete", repository / ".incomplete"):
        folder.mkdir(parents=True)
        for suffix in ("", ".incomplete", ".lock"):
            (folder / f"{hub.sha256(MODEL)}{suffix}").symlink_to(victim)
    with suppress(NearfarError):
        store.pull(REFERENCE)
    assert victim.read_text() == CANARY


def test_an_index_that_points_elsewhere_deletes_nothing_there(store: ModelStore, home: Path) -> None:
    model = store.pull(REFERENCE)
    victim = home.parent / "victim.gguf"
    victim.write_text(CANARY)
    [index] = (home / "nearfar").rglob("*.json")
    index.write_text(index.read_text().replace(model.files[0].path, str(victim)))
    with suppress(NearfarError):
        store.verify()
    with suppress(NearfarError):
        store.remove(model.name)
    assert victim.read_text() == CANARY


@pytest.mark.parametrize("which", ["snapshot", "blob"])
@pytest.mark.parametrize("end", ["remove", "verify"])
def test_what_a_link_was_put_to_since_is_neither_deleted_nor_moved(store: ModelStore, home: Path, which: str, end: str) -> None:
    model = store.pull(REFERENCE)
    victim = home.parent / "another-disk.gguf"
    victim.write_text(CANARY)
    file = Path(model.files[0].path)
    link = file if which == "snapshot" else file.resolve()
    link.unlink()
    link.symlink_to(victim)
    if end == "verify":
        assert store.verify()[0].fault
        assert store.models()[0].obstacle
    store.remove(model.name)
    assert victim.read_text() == CANARY


def fifo(path: Path) -> Path:
    os.mkfifo(path)
    return path


def loop(path: Path) -> Path:
    path.symlink_to(path)
    return path


def folder_with_a_fifo(path: Path) -> Path:
    path.mkdir()
    os.mkfifo(path / "genai_config.json")
    return path


@pytest.mark.timeout(20)
@pytest.mark.parametrize("make", [fifo, loop, folder_with_a_fifo, lambda _: Path("/dev/zero")], ids=["fifo", "loop", "folder", "device"])
def test_what_is_no_file_is_not_added(store: ModelStore, tmp_path: Path, make: Callable[[Path], Path]) -> None:
    with pytest.raises(NearfarError):
        store.add(make(tmp_path / "model.gguf"), name="evil")
    assert store.models() == []
