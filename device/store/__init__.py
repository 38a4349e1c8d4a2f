"""The model store: which models this device has, where they came from, and that they are still what they were."""

from .index import StoredFile, StoredModel
from .store import ModelStore, Verdict
from .transfer import Progress

__all__ = ["ModelStore", "Progress", "StoredFile", "StoredModel", "Verdict"]
