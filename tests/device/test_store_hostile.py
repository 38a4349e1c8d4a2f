"""The model store under attack: hubs that name places outside of the cache, files that are none, links, an index that points elsewhere."""

import gzip
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
from nearfar.device.store.hub import HubOptions
from nearfar.protocols import ConfigError, NearfarError, Unavailable

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
        HubOptions(endpoint=hub.endpoint, hosts=("localhost",), token=None, cache=home / "hub", is_offline=False, pause=0),
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
            (folder / f"{MODEL}.{hub.sha256(MODEL)}{suffix}").symlink_to(victim)
    with suppress(NearfarError):
        store.pull(REFERENCE)
    assert victim.read_text() == CANARY


@pytest.mark.parametrize("link", [Path.symlink_to, Path.hardlink_to], ids=["symbolic", "hard"])
def test_a_download_replaces_a_link_where_it_would_grow(
    store: ModelStore, home: Path, hub: FakeHub, weights: bytes, link: Callable[[Path, Path], None]
) -> None:
    victim = home.parent / "victim"
    victim.write_text(CANARY)
    partial = home / "hub" / f"models--{REPOSITORY.replace('/', '--')}" / ".incomplete" / f"{MODEL}.{hub.sha256(MODEL)}"
    partial.parent.mkdir(parents=True)
    link(partial, victim)
    assert Path(store.pull(REFERENCE).path).read_bytes() == weights
    assert victim.read_text() == CANARY


def listing(**entry: str) -> bytes:
    fields = {"rfilename": '"m-Q8_0.gguf"', "size": "5", "blobId": f'"{"b" * 40}"'} | entry
    file = ", ".join(f'"{key}": {value}' for key, value in fields.items())
    return f'{{"sha": "{"a" * 40}", "siblings": [{{{file}}}]}}'.encode()


@pytest.mark.parametrize(
    "answer",
    [
        listing(size="Infinity"),
        listing(size="NaN"),
        listing(size="1" + "0" * 5000),
        listing(rfilename='"a\\ud800-Q8_0.gguf"'),
        listing(rfilename=f'"{"x" * 300}-Q8_0.gguf"'),
        b"[" * 200_000,
    ],
    ids=["infinity", "no number", "digits", "surrogate", "long name", "depth"],
)
def test_a_listing_that_no_hub_sends_is_told(store: ModelStore, hub: FakeHub, answer: bytes) -> None:
    hub.says = "/api/", b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(answer) + answer
    with pytest.raises(Unavailable, match="does not answer as the Hugging Face hub does"):
        store.pull(REFERENCE)


def test_a_listing_is_not_unpacked(store: ModelStore, hub: FakeHub) -> None:
    bomb = gzip.compress(b" " * (32 << 20))
    hub.says = "/api/", b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: %d\r\n\r\n" % len(bomb) + bomb
    with pytest.raises(Unavailable, match="does not answer as the Hugging Face hub does"):
        store.pull(REFERENCE)


@pytest.mark.timeout(20)
@pytest.mark.parametrize("answer", ["302 Found\r\nLocation: http://localhost:1/", "503 Service Unavailable"])
@pytest.mark.parametrize("path", ["/api/", "/resolve/"])
def test_an_endless_redirect_or_error_is_not_read(store: ModelStore, hub: FakeHub, answer: str, path: str) -> None:
    hub.says, hub.is_endless = (path, f"HTTP/1.1 {answer}\r\n\r\n ".encode()), True
    with pytest.raises(Unavailable):
        store.pull(REFERENCE)


@pytest.mark.timeout(20)
def test_an_endless_listing_is_cut_off(store: ModelStore, hub: FakeHub) -> None:
    hub.says, hub.is_endless = ("/api/", b"HTTP/1.1 200 OK\r\n\r\n "), True
    with pytest.raises(Unavailable, match="does not answer as the Hugging Face hub does"):
        store.pull(REFERENCE)


@pytest.mark.parametrize("place", ["http://a..b/", f"http://{'a' * 300}/", "http://xn--/", "data:,x", "http://[::1"])
def test_a_redirect_to_no_place_at_all_is_told(store: ModelStore, hub: FakeHub, place: str) -> None:
    for path in ("/api/", "/resolve/"):
        hub.says = path, f"HTTP/1.1 302 Found\r\nLocation: {place}\r\nContent-Length: 0\r\n\r\n".encode()
        with pytest.raises(Unavailable, match="cannot be (reached|fetched)"):
            store.pull(REFERENCE)


@pytest.mark.parametrize("name", [f"{'x' * 200}-Q4_0.gguf", f"{'folder/' * 40}m-Q4_0.gguf"], ids=["name", "folders"])
def test_a_long_name_is_fetched(store: ModelStore, hub: FakeHub, weights: bytes, name: str) -> None:
    hub.files = {name: weights}
    assert Path(store.pull(f"hf:{REPOSITORY}:Q4_0", name="long").path).read_bytes() == weights


def test_a_file_in_the_place_of_a_folder_is_told(store: ModelStore, hub: FakeHub, weights: bytes) -> None:
    hub.files = {"m-Q4_0.gguf": weights, "m-Q4_0.gguf/m-Q5_0.gguf": weights}
    store.pull(f"hf:{REPOSITORY}:m-Q4_0.gguf", name="first")
    with pytest.raises(ConfigError, match=r"m-Q5_0\.gguf cannot be written"):
        store.pull(f"hf:{REPOSITORY}:Q5_0", name="second")


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
