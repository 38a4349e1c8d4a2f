"""The store knows the models of this device, and notices when they are no longer what they were."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("gguf", reason="writes models: pip install 'nearfar[test]'")
from tiny_gguf import TinyModel, write_tiny_gguf

from nearfar.device.store import ModelStore
from nearfar.device.store.hub import HubOptions
from nearfar.protocols import ConfigError, ModelError, ModelNotFound


@pytest.fixture
def tiny(tmp_path: Path) -> Path:
    return write_tiny_gguf(tmp_path / "tiny.gguf", TinyModel(layers=1))


@pytest.fixture
def store(tmp_path: Path) -> ModelStore:
    return _store(tmp_path)


def _store(folder: Path) -> ModelStore:
    return ModelStore(folder / "nearfar", HubOptions(cache=folder / "hub", is_offline=True))


def test_a_file_is_added_where_it_lies_and_found_by_name(store: ModelStore, tiny: Path) -> None:
    assert store.models() == []
    model = store.add(tiny)
    assert (model.name, model.owned) == ("tiny", False)
    assert store.path_of("tiny") == tiny
    assert store.models() == [model]


def test_a_store_is_read_by_the_next_process(tmp_path: Path, store: ModelStore, tiny: Path) -> None:
    model = store.add(tiny, name="mine")
    assert _store(tmp_path).find("mine") == model


def test_removing_a_model_that_was_added_leaves_its_file(store: ModelStore, tiny: Path) -> None:
    store.add(tiny)
    store.remove("tiny")
    assert store.models() == []
    assert tiny.is_file()


def test_names_that_mean_something_else_are_refused(store: ModelStore, tiny: Path) -> None:
    for name in ("near", "far", "a/b", "..", "x.gguf", "hf:a"):
        with pytest.raises(ConfigError):
            store.add(tiny, name=name)
    assert store.models() == []


def test_a_taken_name_is_refused_and_the_same_file_may_be_added_again(tmp_path: Path, store: ModelStore, tiny: Path) -> None:
    store.add(tiny)
    store.add(tiny)
    other = write_tiny_gguf(tmp_path / "other.gguf")
    with pytest.raises(ConfigError, match="there is a model tiny already"):
        store.add(other, name="tiny")


def test_a_damaged_file_is_not_added(store: ModelStore, tiny: Path) -> None:
    tiny.write_bytes(tiny.read_bytes()[:-1000])
    with pytest.raises(ModelError, match="damaged"):
        store.add(tiny)
    assert store.models() == []


def test_a_file_with_another_checksum_is_not_added(store: ModelStore, tiny: Path) -> None:
    with pytest.raises(ModelError, match="not abab"):
        store.add(tiny, sha256="ab" * 32)
    assert store.models() == []


def test_a_file_that_is_not_there_is_told(store: ModelStore, tmp_path: Path) -> None:
    with pytest.raises(ModelNotFound):
        store.add(tmp_path / "none.gguf")
    with pytest.raises(ModelNotFound):
        store.path_of("none")
    with pytest.raises(ModelNotFound):
        store.remove("none")
    with pytest.raises(ModelNotFound):
        store.verify(["none"])


def test_a_model_that_changed_is_not_loaded_until_it_is_verified(store: ModelStore, tiny: Path) -> None:
    store.add(tiny)
    data = tiny.read_bytes()
    tiny.write_bytes(data)
    with pytest.raises(ModelError, match="has changed since it was checked"):
        store.path_of("tiny")
    assert [verdict.fault for verdict in store.verify()] == [""]
    assert store.path_of("tiny") == tiny


def test_a_single_changed_byte_puts_a_model_into_quarantine(store: ModelStore, tiny: Path) -> None:
    store.add(tiny)
    data = bytearray(tiny.read_bytes())
    data[-5] ^= 1
    tiny.write_bytes(data)
    (verdict,) = store.verify(["tiny"])
    assert "SHA-256" in verdict.fault
    with pytest.raises(ModelError, match="in quarantine"):
        store.path_of("tiny")
    assert tiny.is_file(), "the file is its owner's"
    data[-5] ^= 1
    tiny.write_bytes(data)
    assert [verdict.fault for verdict in store.verify(["tiny"])] == [""]
    assert store.path_of("tiny") == tiny


def test_a_folder_for_onnxruntime_is_added_and_verified_whole(tmp_path: Path, store: ModelStore, near_folder: Path) -> None:
    folder = tmp_path / "near-onnx"
    shutil.copytree(near_folder, folder)
    model = store.add(folder)
    assert (model.format, store.path_of("near-onnx")) == ("onnx", folder)
    assert {Path(file.path).name for file in model.files} >= {"genai_config.json", "model.onnx", "tokenizer.json"}
    (folder / "tokenizer.json").write_text("{}", encoding="utf-8")
    with pytest.raises(ModelError, match="has changed"):
        store.path_of("near-onnx")
    assert "tokenizer.json has the SHA-256" in store.verify()[0].fault


def test_a_folder_that_is_no_model_is_not_added(tmp_path: Path, store: ModelStore) -> None:
    with pytest.raises(ModelError, match=r"genai_config\.json"):
        store.add(tmp_path)


def test_a_model_whose_file_is_gone_fails_verification(store: ModelStore, tiny: Path) -> None:
    store.add(tiny)
    tiny.unlink()
    assert "No such file" in store.verify()[0].fault


def test_a_model_that_ships_is_not_taken_for_one_of_the_store(store: ModelStore) -> None:
    for act in (store.remove, lambda name: store.verify([name])):
        with pytest.raises(ConfigError, match="near ships with nearfar"):
            act("near")


@pytest.mark.parametrize("text", ["{", "[" * 100_000])
def test_a_damaged_index_is_told_and_not_overwritten(tmp_path: Path, store: ModelStore, tiny: Path, text: str) -> None:
    store.add(tiny)
    index = tmp_path / "nearfar" / "models" / "index.json"
    index.write_text(text, encoding="utf-8")
    for act in (store.models, lambda: store.add(tiny)):
        with pytest.raises(ConfigError, match="is damaged"):
            act()
    assert index.read_text(encoding="utf-8") == text


def test_a_name_like_that_of_a_part_of_none_is_a_file_of_its_own(tmp_path: Path, store: ModelStore, tiny: Path) -> None:
    assert store.add(tiny.rename(tmp_path / "model-00000-of-00000.gguf"), name="odd").path.endswith("00000.gguf")


def test_processes_that_add_at_the_same_time_lose_nothing(tmp_path: Path, tiny: Path) -> None:
    script = (
        "import sys; from pathlib import Path; from nearfar.device.store import ModelStore; store = ModelStore(Path(sys.argv[1]))\n"
        "for number in range(20): store.add(Path(sys.argv[2]), name=f'{sys.argv[3]}-{number}')"
    )
    arguments = [str(tmp_path / "nearfar"), str(tiny)]
    writers = [subprocess.Popen([sys.executable, "-c", script, *arguments, str(writer)]) for writer in range(3)]
    assert [writer.wait(60) for writer in writers] == [0, 0, 0]
    assert len(_store(tmp_path).models()) == 60


def test_an_interrupted_write_leaves_the_index_as_it_was(
    tmp_path: Path, store: ModelStore, tiny: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.add(tiny)

    def fail(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(KeyboardInterrupt):
        store.add(tiny, name="second")
    assert [model.name for model in _store(tmp_path).models()] == ["tiny"]


def test_the_environment_says_where_the_hub_and_its_files_are(tmp_path: Path) -> None:
    home = str(tmp_path)
    (tmp_path / "token").write_text("hf_file\n", encoding="utf-8")
    settings = HubOptions.from_environment({"HF_HOME": home, "HF_ENDPOINT": "https://hub.example/", "HF_HUB_OFFLINE": "1"})
    assert settings == HubOptions(endpoint="https://hub.example", token="hf_file", cache=tmp_path / "hub", is_offline=True)
    settings = HubOptions.from_environment({"HF_HOME": home, "NEARFAR_MODEL_HOSTS": "files.corp, 10.0.0.7:9000,"})
    assert settings.hosts == ("files.corp", "10.0.0.7:9000")
    settings = HubOptions.from_environment({"HF_HOME": home, "HF_HUB_CACHE": "/cache", "HF_TOKEN": "hf_variable\n"})
    assert settings == HubOptions(token="hf_variable", cache=Path("/cache"))
    (tmp_path / "token").write_bytes(b"\xff\xfe")
    assert HubOptions.from_environment({"HF_HOME": home}).token is None


def test_a_folder_of_hugging_faces_is_read_as_their_own_programs_read_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DISK", "/disk")
    assert HubOptions.from_environment({"HF_HUB_CACHE": "$DISK/hub"}).cache == Path("/disk/hub")
    assert HubOptions.from_environment({"HF_HOME": "~nobody-of-that-name/hf"}).cache == Path("~nobody-of-that-name/hf/hub")
