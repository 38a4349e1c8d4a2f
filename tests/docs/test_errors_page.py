"""The errors page lists every class with the status that it travels as."""

import re

import pytest
from pages import ROOT

from nearfar.protocols import NearfarError, UserError
from nearfar.protocols.errors import MAPPINGS

PAGE = (ROOT / "docs" / "errors.md").read_text(encoding="utf-8")
ROWS = {name: (status, int(code)) for name, status, code in re.findall(r"^\| `(\w+)` \| (\w+) \| (\d+) \|", PAGE, re.MULTILINE)}


def test_every_class_is_listed_once() -> None:
    assert sorted(re.findall(r"^\| `(\w+)` \|", PAGE, re.MULTILINE)) == sorted(cls.__name__ for cls in MAPPINGS)


@pytest.mark.parametrize("cls", MAPPINGS, ids=lambda cls: cls.__name__)
def test_class_is_listed_with_its_status_and_fault(cls: type[NearfarError]) -> None:
    mapping = MAPPINGS[cls]
    assert ROWS[cls.__name__] == (mapping.grpc_status, mapping.http_status)
    listed_as_user_error = PAGE.index(f"| `{cls.__name__}` |") < PAGE.index("`AgentError`\n")
    assert listed_as_user_error == issubclass(cls, UserError)
