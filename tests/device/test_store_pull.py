"""Models are fetched from a hub on loopback, whatever happens on the way."""

import errno
import os
import resource
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

pytest.importorskip("httpx", reason="fetching models needs httpx: pip install 'nearfar[models]'")
pytest.importorskip("gguf", reason="writes models: pip install 'nearfar[test]'")
from fake_hub import REPOSITORY, FakeHub, fake_hub
from tiny_gguf import TinyModel, write_tiny_gguf

from nearfar.device.store import ModelStore
from nearfar.device.store.download import locked
from nearfar.device.store.hub import HubOptions
from nearfar.protocols import ConfigError, ModelError, ModelNotFound, RateLimited, Unauthenticated, Unavailable

SMALL = f"hf:{REPOSITORY}:Q4_0"
LARGE = f"hf:{REPOSITORY}:Q8_0"


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    folder = tmp_path_factory.mktemp("weights")
    models = {name: TinyModel(layers=layers) for name, layers in (("small", 1), ("large", 2))}
    return {name: write_tiny_gguf(folder / name, model).read_bytes() for name, model in models.items()}


@pytest.fixture
def hub(weights: dict[str, bytes]) -> Iterator[FakeHub]:
    with fake_hub(README__md=b"# Model") as hub:
        hub.files |= {"model-Q4_0.gguf": weights["small"], "model-Q8_0.gguf": weights["large"], "mmproj-model-F16.gguf": b"eyes"}
        yield hub


@pytest.fixture
def store(tmp_path: Path, hub: FakeHub) -> ModelStore:
    return _store(tmp_path, hub)


def _store(folder: Path, hub: FakeHub, *, token: str | None = None, offline: bool = False) -> ModelStore:
    settings = HubOptions(endpoint=hub.endpoint, hosts=("localhost",), token=token, cache=folder / "hub", is_offline=offline, pause=0)
    return ModelStore(folder / "nearfar", settings)


def _blobs(folder: Path) -> list[Path]:
    return list((folder / "hub").rglob("*/blobs/*"))


def _partials(folder: Path) -> list[Path]:
    return [path for path in folder.rglob(".incomplete/*") if path.suffix != ".lock"]


@pytest.mark.parametrize("selector", [":Q8_0", ":q8_0", ":model-Q8_0.gguf"])
def test_a_model_is_pulled_by_its_quantisation_or_file(store: ModelStore, hub: FakeHub, selector: str) -> None:
    model = store.pull(f"hf:{REPOSITORY}{selector}")
    assert (model.name, model.source, model.commit) == ("model-Q8_0", f"hf:{REPOSITORY}:model-Q8_0.gguf", hub.commit)
    assert model.files[0].sha256 == hub.sha256("model-Q8_0.gguf")
    for name in ("model-Q8_0", LARGE, f"hf:{REPOSITORY}"):
        assert store.path_of(name).read_bytes() == hub.files["model-Q8_0.gguf"]


def test_a_model_that_is_here_is_not_fetched_again(store: ModelStore, hub: FakeHub) -> None:
    store.pull(LARGE)
    store.pull(LARGE)
    assert len(hub.ranges) == 1


def test_a_model_that_was_not_pulled_is_not_fetched_for_a_run(store: ModelStore, hub: FakeHub) -> None:
    with pytest.raises(ModelNotFound) as raised:
        store.path_of(LARGE)
    assert f"nearfar models pull {LARGE}" in raised.value.hint
    assert hub.asked == []


def test_progress_is_told_until_all_bytes_are_there(store: ModelStore, hub: FakeHub) -> None:
    told: list[tuple[str, int, int]] = []
    store.pull(LARGE, progress=lambda *news: told.append(news))
    size = len(hub.files["model-Q8_0.gguf"])
    assert ("fetching model-Q8_0.gguf", size, size) in told
    assert told[-1] == ("checking model-Q8_0.gguf", size, size)


def test_an_unknown_quantisation_names_those_that_there_are(store: ModelStore) -> None:
    with pytest.raises(ModelNotFound, match="Q3_K_M") as raised:
        store.pull(f"hf:{REPOSITORY}:Q3_K_M")
    assert raised.value.hint == "there are Q4_0, Q8_0"


def test_a_reference_that_fits_several_models_names_them(store: ModelStore) -> None:
    with pytest.raises(ConfigError, match="fits 2 models") as raised:
        store.pull(f"hf:{REPOSITORY}")
    assert "Q4_0, Q8_0" in raised.value.hint


def test_models_of_one_quantisation_are_told_apart_by_their_names(store: ModelStore, hub: FakeHub, weights: dict[str, bytes]) -> None:
    hub.files["draft-Q8_0.gguf"] = weights["small"]
    with pytest.raises(ConfigError, match="fits 2 models") as raised:
        store.pull(LARGE)
    assert raised.value.hint == "name one of them: there are Q4_0, draft-Q8_0, model-Q8_0"
    assert store.pull(f"hf:{REPOSITORY}:draft-Q8_0").name == "draft-Q8_0"


def test_a_repository_without_gguf_says_so(tmp_path: Path) -> None:
    with fake_hub(model__safetensors=b"weights") as hub, pytest.raises(ModelNotFound, match="has no GGUF file"):
        _store(tmp_path, hub).pull(f"hf:{REPOSITORY}:Q8_0")


@pytest.mark.parametrize("text", ["hf:model", "hf:maker/model/Q8_0", "hf:../model:Q8_0", "hf:maker/..:Q8_0", "model.gguf", "hf:a/b c"])
def test_what_names_no_model_of_a_repository_is_refused(store: ModelStore, text: str) -> None:
    with pytest.raises(ConfigError):
        store.pull(text)


def test_an_unknown_repository_and_an_unknown_revision_are_told(store: ModelStore) -> None:
    for reference, revision in (("hf:maker/other:Q8_0", "main"), (LARGE, "v2")):
        with pytest.raises(ModelNotFound, match="there is no"):
            store.pull(reference, revision=revision)


def test_a_download_that_broke_goes_on_where_it_was(tmp_path: Path, store: ModelStore, hub: FakeHub) -> None:
    hub.breaks_after = 0
    with pytest.raises(Unavailable, match="cannot be fetched"):
        store.pull(LARGE)
    assert store.models() == []
    half = len(hub.files["model-Q8_0.gguf"]) // 2
    _interrupt(store, after=half, hub=hub)
    (partial,) = _partials(tmp_path)
    assert partial.stat().st_size == half
    hub.breaks_after, hub.asked[:] = None, []
    store.pull(LARGE)
    assert hub.ranges == [f"bytes={half}-"]
    assert store.path_of(LARGE).read_bytes() == hub.files["model-Q8_0.gguf"]
    assert _partials(tmp_path) == []


def test_of_two_processes_that_pull_the_same_model_one_fetches_it(tmp_path: Path, store: ModelStore, hub: FakeHub) -> None:
    script = (
        "import sys; from pathlib import Path; from nearfar.device.store import ModelStore\n"
        "from nearfar.device.store.hub import HubOptions\n"
        "settings = HubOptions(endpoint=sys.argv[2], hosts=('localhost',), cache=Path(sys.argv[1], 'hub'))\n"
        "ModelStore(Path(sys.argv[1], 'nearfar'), settings).pull(sys.argv[3])"
    )
    hub.waits_after = 0
    pullers = [subprocess.Popen([sys.executable, "-c", script, str(tmp_path), hub.endpoint, LARGE]) for _ in range(2)]
    assert hub.waiting.wait(60)
    hub.waits_after = None
    hub.go_on.set()
    assert [puller.wait(60) for puller in pullers] == [0, 0]
    assert hub.ranges == [None, None], "the first connection broke without a byte"
    assert store.path_of(LARGE).read_bytes() == hub.files["model-Q8_0.gguf"]


def test_a_pull_that_waits_for_another_says_so(tmp_path: Path, store: ModelStore) -> None:
    told = threading.Event()

    def tell(title: str, _done: int, _total: int) -> None:
        if title.startswith("waiting for the process that fetches model-Q8_0.gguf"):
            told.set()

    lock = tmp_path / "hub" / f"models--{REPOSITORY.replace('/', '--')}" / ".incomplete" / "model-Q8_0.gguf.lock"
    with ThreadPoolExecutor(1) as pool:
        with locked(lock):
            pulled = pool.submit(store.pull, LARGE, progress=tell)
            assert told.wait(60)
        assert pulled.result(60).name == "model-Q8_0"


def test_a_connection_that_breaks_now_and_then_is_taken_up_again(store: ModelStore, hub: FakeHub) -> None:
    size = len(hub.files["model-Q8_0.gguf"])
    hub.breaks_after = size // 3
    store.pull(LARGE)
    assert hub.ranges == [None, *(f"bytes={done}-" for done in range(size // 3, size, size // 3))]


def test_a_file_that_changed_meanwhile_is_fetched_from_its_beginning(
    tmp_path: Path, store: ModelStore, hub: FakeHub, weights: dict[str, bytes]
) -> None:
    _interrupt(store, after=1000, hub=hub)
    hub.breaks_after, hub.asked[:] = None, []
    hub.files["model-Q8_0.gguf"] = weights["small"]
    store.pull(LARGE)
    assert hub.ranges == [None]
    assert store.path_of(LARGE).read_bytes() == weights["small"]
    assert _partials(tmp_path) == []


def test_a_server_without_ranges_sends_all_of_it_again(store: ModelStore, hub: FakeHub) -> None:
    _interrupt(store, after=1000, hub=hub)
    hub.breaks_after, hub.ignores_ranges = None, True
    store.pull(LARGE)
    assert store.path_of(LARGE).read_bytes() == hub.files["model-Q8_0.gguf"]


@pytest.mark.parametrize("ignores_ranges", [False, True])
@pytest.mark.parametrize("more", [-1000, 1000])
def test_a_file_of_another_size_than_was_announced_is_given_up(store: ModelStore, hub: FakeHub, more: int, ignores_ranges: bool) -> None:
    hub.claimed_bytes = len(hub.files["model-Q8_0.gguf"]) + more
    hub.ignores_ranges = ignores_ranges
    with pytest.raises(Unavailable, match="model-Q8_0.gguf"):
        store.pull(LARGE)
    assert store.models() == []


def _interrupt(store: ModelStore, *, after: int, hub: FakeHub) -> None:
    """Ctrl-C while the first `after` bytes have come."""
    hub.breaks_after = after

    def stop(_title: str, done: int, _total: int) -> None:
        if done == after:
            signal.raise_signal(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        store.pull(LARGE, progress=stop)
    assert store.models() == []


def test_a_full_disk_is_told_and_the_download_goes_on_when_there_is_room(tmp_path: Path, store: ModelStore, hub: FakeHub) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, hard))
    try:
        with pytest.raises(ConfigError, match="disk is full: 20000 of the") as raised:
            store.pull(LARGE)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert isinstance(raised.value.__cause__, OSError)
    assert raised.value.__cause__.errno == errno.EFBIG
    assert store.models() == []
    assert not list(tmp_path.rglob("*.gguf"))
    hub.asked[:] = []
    store.pull(LARGE)
    assert hub.ranges == ["bytes=20000-"]


def test_a_disk_that_cannot_hold_the_file_is_told_before_it_is_fetched(
    store: ModelStore, hub: FakeHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = os.statvfs_result((4096, 4096, 10, 1, 1, 10, 10, 10, 0, 255))
    monkeypatch.setattr(os, "statvfs", lambda _path: usage)
    with pytest.raises(ConfigError, match="are free in"):
        store.pull(LARGE)
    assert hub.ranges == []


def test_content_that_is_not_what_the_hub_states_goes_to_quarantine(tmp_path: Path, store: ModelStore, hub: FakeHub) -> None:
    hub.claimed["model-Q8_0.gguf"] = "ab" * 32
    with pytest.raises(ModelError, match="quarantine: model-Q8_0.gguf has the SHA-256"):
        store.pull(LARGE)
    for name in ("model-Q8_0", LARGE):
        with pytest.raises(ModelError, match="in quarantine"):
            store.path_of(name)
    assert not [path for path in (tmp_path / "hub").rglob("*") if path.is_file() and path.suffix != ".lock" and "refs" not in path.parts]
    (reason,) = (tmp_path / "nearfar" / "models" / "quarantine").glob("*.reason.txt")
    assert "abab" in reason.read_text(encoding="utf-8")
    hub.claimed.clear()
    assert store.path_of(store.pull(LARGE).name).read_bytes() == hub.files["model-Q8_0.gguf"]


def test_a_damaged_model_goes_to_quarantine_though_its_checksum_is_right(store: ModelStore, hub: FakeHub) -> None:
    hub.files["model-Q8_0.gguf"] = hub.files["model-Q8_0.gguf"][:-100]
    with pytest.raises(ModelError, match="quarantine: .* bytes after the end"):
        store.pull(LARGE)
    assert store.models()[0].quarantined
    store.remove("model-Q8_0")
    assert store.models() == []


def test_another_checksum_than_the_one_asked_for_is_refused_before_anything_is_fetched(store: ModelStore, hub: FakeHub) -> None:
    with pytest.raises(ModelError, match="not cdcd"):
        store.pull(LARGE, sha256="cd" * 32)
    with pytest.raises(ConfigError, match="not a SHA-256"):
        store.pull(LARGE, sha256="abc")
    assert hub.ranges == []
    assert store.pull(LARGE, sha256=hub.sha256("model-Q8_0.gguf").upper()).name == "model-Q8_0"


def test_a_model_is_pinned_to_what_was_pulled_first(store: ModelStore, hub: FakeHub, weights: dict[str, bytes]) -> None:
    store.pull(LARGE)
    hub.files["model-Q8_0.gguf"] = weights["small"]
    with pytest.raises(ModelError, match="no longer what was pulled") as raised:
        store.pull(LARGE)
    assert hub.sha256("model-Q8_0.gguf") in raised.value.hint
    assert store.path_of(LARGE).read_bytes() == weights["large"]
    store.pull(LARGE, sha256=hub.sha256("model-Q8_0.gguf"))
    assert store.path_of(LARGE).read_bytes() == weights["small"]


def test_a_split_model_is_pulled_whole(tmp_path: Path, store: ModelStore, hub: FakeHub, weights: dict[str, bytes]) -> None:
    part = _split_part(tmp_path / "part.gguf")
    hub.files |= {"Q6_K/big-Q6_K-00001-of-00002.gguf": weights["small"], "Q6_K/big-Q6_K-00002-of-00002.gguf": part}
    model = store.pull(f"hf:{REPOSITORY}:Q6_K")
    assert (model.name, len(model.files), model.bytes) == ("big-Q6_K", 2, len(weights["small"]) + len(part))
    first = store.path_of(f"hf:{REPOSITORY}:Q6_K")
    assert first.name == "big-Q6_K-00001-of-00002.gguf"
    assert first.with_name("big-Q6_K-00002-of-00002.gguf").read_bytes() == part


def test_a_split_model_with_a_part_missing_is_not_begun(store: ModelStore, hub: FakeHub, weights: dict[str, bytes]) -> None:
    hub.files["big-Q6_K-00001-of-00002.gguf"] = weights["small"]
    with pytest.raises(ModelNotFound, match="1 of 2 parts"):
        store.pull(f"hf:{REPOSITORY}:Q6_K")


def _split_part(path: Path) -> bytes:
    import gguf
    import numpy as np

    writer = gguf.GGUFWriter(str(path), "llama")
    writer.kv_data[0].clear()
    writer.add_uint16("split.no", 1)
    writer.add_tensor("blk.9.attn_norm.weight", np.ones(64, dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path.read_bytes()


def test_offline_only_the_cache_is_asked(tmp_path: Path, store: ModelStore, hub: FakeHub) -> None:
    offline = _store(tmp_path, hub, offline=True)
    with pytest.raises(ConfigError, match="HF_HUB_OFFLINE is set"):
        offline.pull(LARGE)
    assert hub.asked == []
    store.pull(LARGE)
    hub.asked[:] = []
    other = ModelStore(tmp_path / "other", HubOptions(endpoint=hub.endpoint, hosts=("localhost",), cache=tmp_path / "hub", is_offline=True))
    model = other.pull(LARGE)
    assert hub.asked == []
    assert not model.owned, "another program of this user had it first"
    other.remove(model.name)
    assert store.path_of(LARGE).is_file()


def test_what_another_program_left_damaged_is_not_loaded_and_not_moved(tmp_path: Path, store: ModelStore, hub: FakeHub) -> None:
    blob = store.path_of(store.pull(LARGE).name).resolve()
    blob.write_bytes(blob.read_bytes()[:-1] + b"\0")
    other = ModelStore(tmp_path / "other", HubOptions(endpoint=hub.endpoint, hosts=("localhost",), cache=tmp_path / "hub"))
    with pytest.raises(ModelError, match="SHA-256") as raised:
        other.pull(LARGE)
    assert f"delete {blob}" in raised.value.hint
    assert blob.is_file()
    blob.unlink()
    assert other.path_of(other.pull(LARGE).name).read_bytes() == hub.files["model-Q8_0.gguf"]


def test_offline_a_quantisation_that_is_not_in_the_cache_is_not_said_to_be_missing_from_the_repository(
    tmp_path: Path, store: ModelStore, hub: FakeHub
) -> None:
    store.pull(LARGE)
    with pytest.raises(ConfigError, match="HF_HUB_OFFLINE is set") as raised:
        _store(tmp_path, hub, offline=True).pull(SMALL)
    assert raised.value.hint == "unset HF_HUB_OFFLINE; there are Q8_0"


@pytest.mark.parametrize("offline", [False, True])
@pytest.mark.parametrize("revision", ["..", "../main", "/etc/main", "a//b", ""])
def test_a_revision_that_leads_out_of_the_cache_is_refused(
    tmp_path: Path, store: ModelStore, hub: FakeHub, revision: str, offline: bool
) -> None:
    store.pull(LARGE)
    with pytest.raises(ConfigError, match="is not a valid revision"):
        _store(tmp_path, hub, offline=offline).pull(LARGE, revision=revision)


def test_what_is_shared_stays_until_the_last_model_that_has_it_is_removed(tmp_path: Path, store: ModelStore, hub: FakeHub) -> None:
    store.pull(LARGE)
    hub.files["README.md"] = b"# Another commit with the same weights"
    assert not store.pull(LARGE, name="second").owned
    store.remove("model-Q8_0")
    assert store.path_of("second").read_bytes() == hub.files["model-Q8_0.gguf"]
    assert [verdict.fault for verdict in store.verify()] == [""]
    store.add(store.path_of("second"), name="added")
    store.remove("second")
    store.remove("added")
    assert len(_blobs(tmp_path)) == 1, "what was added where it lies is not deleted"


def test_what_is_replaced_is_deleted(tmp_path: Path, store: ModelStore, hub: FakeHub, weights: dict[str, bytes]) -> None:
    store.pull(LARGE)
    hub.files["model-Q8_0.gguf"] = weights["small"]
    assert store.pull(LARGE, sha256=hub.sha256("model-Q8_0.gguf")).owned
    assert [path.name for path in _blobs(tmp_path)] == [hub.sha256("model-Q8_0.gguf")]
    damaged = store.path_of(LARGE)
    damaged.write_bytes(damaged.read_bytes()[:-1] + b"\1")
    assert store.verify()[0].fault
    quarantine = tmp_path / "nearfar" / "models" / "quarantine"
    assert len(list(quarantine.iterdir())) == 2, "the file, and why it is there"
    store.pull(LARGE)
    assert list(quarantine.iterdir()) == []
    store.remove("model-Q8_0")
    assert _blobs(tmp_path) == []


def test_a_split_model_belongs_to_the_store_though_fetching_it_was_interrupted(
    tmp_path: Path, store: ModelStore, hub: FakeHub, weights: dict[str, bytes]
) -> None:
    part = _split_part(tmp_path / "part.gguf")
    names = [f"big-Q6_K-0000{number}-of-00002.gguf" for number in (1, 2)]
    hub.files |= dict(zip(names, (weights["small"], part), strict=True))

    def stop(title: str, _done: int, _total: int) -> None:
        if title == f"fetching {names[1]}":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        store.pull(f"hf:{REPOSITORY}:Q6_K", progress=stop)
    assert store.pull(f"hf:{REPOSITORY}:Q6_K").owned
    store.remove("big-Q6_K")
    assert _blobs(tmp_path) == []


def test_a_model_that_is_removed_while_it_is_verified_stays_removed(store: ModelStore) -> None:
    store.pull(LARGE)

    def remove(*_news: object) -> None:
        if store.models():
            store.remove("model-Q8_0")

    store.verify(progress=remove)
    assert store.models() == []


def test_a_model_whose_disk_was_away_is_verified_when_it_is_back(tmp_path: Path, store: ModelStore) -> None:
    store.pull(LARGE)
    (tmp_path / "hub").rename(tmp_path / "away")
    assert "No such file" in store.verify()[0].fault
    (tmp_path / "away").rename(tmp_path / "hub")
    assert store.verify()[0].fault == ""
    assert store.path_of(LARGE).is_file()


def test_what_cannot_be_moved_to_quarantine_is_not_loaded_either(tmp_path: Path, store: ModelStore) -> None:
    path = store.path_of(store.pull(LARGE).name)
    (tmp_path / "nearfar" / "models" / "quarantine").write_bytes(b"a file where the folder should be")
    path.resolve().write_bytes(b"GGUF" + path.read_bytes()[4:-1] + b"\0")
    (verdict,) = store.verify()
    assert "SHA-256" in verdict.fault
    assert path.is_file()
    with pytest.raises(ModelError, match="in quarantine"):
        store.path_of("model-Q8_0")
    store.remove("model-Q8_0")
    assert not path.exists()


@pytest.mark.parametrize("token", ["hf_secret\nX-Header: 1", "hf_sécret"])
def test_a_token_that_cannot_be_sent_is_not_shown(tmp_path: Path, hub: FakeHub, token: str) -> None:
    with pytest.raises(ConfigError, match="token contains invalid") as raised:
        _store(tmp_path, hub, token=token).pull(LARGE)
    assert "cret" not in f"{raised.value}{raised.value.hint}{raised.value.__cause__}"


def test_what_stands_in_front_of_the_hubs_host_is_not_shown(tmp_path: Path) -> None:
    store = ModelStore(tmp_path, HubOptions(endpoint="http://me:secret@127.0.0.1:9", cache=tmp_path / "hub"))
    with pytest.raises(Unavailable, match=r"^127\.0\.0\.1:9 cannot be reached") as raised:
        store.pull(LARGE)
    assert "secret" not in f"{raised.value}{raised.value.hint}"


def test_an_address_that_is_none_is_told(tmp_path: Path) -> None:
    store = ModelStore(tmp_path, HubOptions(endpoint="http://127.0.0.1:port", cache=tmp_path / "hub"))
    with pytest.raises(ConfigError, match="HF_ENDPOINT is not a valid URL"):
        store.pull(LARGE)


def test_the_token_goes_to_the_hub_and_not_to_where_it_redirects(tmp_path: Path, hub: FakeHub) -> None:
    hub.token = "hf_secret"
    with pytest.raises(Unauthenticated) as raised:
        _store(tmp_path, hub).pull(LARGE)
    assert "HF_TOKEN" in raised.value.hint
    hub.asked[:] = []
    _store(tmp_path, hub, token="hf_secret").pull(LARGE)
    assert {path.partition("/")[2].partition("/")[0]: header for path, _, header in hub.asked} == {
        "api": "Bearer hf_secret",
        "maker": "Bearer hf_secret",
        "content": None,
    }


@pytest.mark.parametrize("size", [None, -1, "many"])
def test_a_hub_that_tells_no_size_is_none(store: ModelStore, hub: FakeHub, size: object) -> None:
    hub.listed_size = [size]
    with pytest.raises(Unavailable, match="does not answer as the Hugging Face hub does"):
        store.pull(LARGE)


def test_an_empty_file_goes_to_quarantine(store: ModelStore, hub: FakeHub) -> None:
    hub.files["model-Q8_0.gguf"] = b""
    with pytest.raises(ModelError, match="is empty"):
        store.pull(LARGE)


def test_a_hub_that_sends_one_in_circles_is_given_up(store: ModelStore, hub: FakeHub) -> None:
    hub.redirects_in_circles = True
    with pytest.raises(Unavailable, match="cannot be fetched: Exceeded maximum allowed redirects"):
        store.pull(LARGE)


@pytest.mark.parametrize(("status", "error"), [(429, RateLimited), (503, Unavailable)])
def test_a_hub_in_trouble_is_told_as_what_it_is(store: ModelStore, hub: FakeHub, status: int, error: type[Exception]) -> None:
    hub.answer = status
    with pytest.raises(error, match=str(status)):
        store.pull(LARGE)


def test_something_else_than_a_hub_is_told(store: ModelStore, hub: FakeHub) -> None:
    hub.answer = 200
    with pytest.raises(Unavailable, match="does not answer as the Hugging Face hub does"):
        store.pull(LARGE)


def test_names_that_lead_out_of_the_cache_are_refused(store: ModelStore, hub: FakeHub, weights: dict[str, bytes]) -> None:
    hub.files["../../model-Q5_0.gguf"] = weights["small"]
    with pytest.raises(Unavailable, match="does not answer"):
        store.pull(f"hf:{REPOSITORY}:Q5_0")


def test_a_hub_that_is_not_there_is_told(tmp_path: Path) -> None:
    store = ModelStore(tmp_path, HubOptions(endpoint="http://127.0.0.1:9", cache=tmp_path / "hub"))
    with pytest.raises(Unavailable, match="cannot be reached"):
        store.pull(LARGE)
