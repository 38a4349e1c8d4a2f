"""The wording of errors about the memory store's file."""

from typing import Final

from ....protocols import StoreCorrupt
from ...storage.sqlite.errors import Naming

STORE: Final = Naming(
    "memory store",
    recovery="nearfar memory recover saves what can be read",
    otherwise=", or the key is not the one that it was encrypted with",
)


def damaged(how: str) -> StoreCorrupt:
    return STORE.damaged(how)
