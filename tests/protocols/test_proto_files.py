"""The .proto files as teams in other languages find them, and the Python modules generated from them."""

import importlib
import pickle
import re
from pathlib import Path

import pytest

from nearfar.protocols.v1 import agent_pb2, hub_pb2, memory_pb2

PROTO_ROOT = Path(__file__).parents[2] / "protocols/proto"
FILES = sorted(PROTO_ROOT.rglob("*.proto"))
MODULES = (agent_pb2, hub_pb2, memory_pb2)


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_every_import_of_a_proto_file_lies_below_the_root(file: Path) -> None:
    imported = re.findall(r'^import (?:public )?"([^"]+)";', file.read_text(encoding="utf-8"), re.MULTILINE)
    assert [name for name in imported if not (PROTO_ROOT / name).is_file()] == []


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_a_proto_file_lies_in_the_folder_of_its_package(file: Path) -> None:
    package = re.search(r"^package ([\w.]+);", file.read_text(encoding="utf-8"), re.MULTILINE)
    assert package is not None
    assert file.parent == PROTO_ROOT / package[1].replace(".", "/")


def test_reflection_names_files_as_the_repository_does() -> None:
    assert {module.DESCRIPTOR.name for module in MODULES} == {file.relative_to(PROTO_ROOT).as_posix() for file in FILES}


@pytest.mark.parametrize("module", MODULES, ids=lambda module: module.__name__)
def test_generated_messages_know_the_module_they_are_in(module: object) -> None:
    messages = [value for value in vars(module).values() if hasattr(value, "DESCRIPTOR") and isinstance(value, type)]
    assert messages
    assert all(getattr(importlib.import_module(message.__module__), message.__name__) is message for message in messages)


def test_a_message_survives_pickling() -> None:
    assert pickle.loads(pickle.dumps(agent_pb2.CancelRequest(reader="r"))) == agent_pb2.CancelRequest(reader="r")
