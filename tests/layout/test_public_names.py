"""What the packages promise in `__all__` is there."""

import importlib

import pytest

PACKAGES = [
    *("nearfar.protocols", "nearfar.protocols.testing", "nearfar.device", "nearfar.cloud", "nearfar.orchestrator"),
    "nearfar.orchestrator.memory",
]


@pytest.mark.parametrize("package", PACKAGES)
def test_public_names_resolve(package: str) -> None:
    module = importlib.import_module(package)
    for name in getattr(module, "__all__", []):
        assert getattr(module, name) is not None


@pytest.mark.parametrize("package", ["nearfar.protocols", "nearfar.orchestrator", "nearfar.orchestrator.memory"])
def test_public_names_are_declared_and_sorted(package: str) -> None:
    names = importlib.import_module(package).__all__
    assert list(names) == sorted(names)
    assert len(set(names)) == len(names)


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no_such_name"):
        importlib.import_module("nearfar.orchestrator").no_such_name  # noqa: B018 - the access is what is tested
