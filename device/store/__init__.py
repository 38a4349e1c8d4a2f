"""The model store: which models this device has, where they came from, and that they are still what they were."""

from .download import Progress
from .index import StoredFile, StoredModel
from .store import ModelStore, ModelVerdict

__all__ = ["ModelStore", "Progress", "StoredFile", "StoredModel", "ModelVerdict"]
