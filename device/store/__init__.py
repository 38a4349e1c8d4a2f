"""The model store: which models this device has, where they came from, and that they are still what they were."""

from .download import Progress
from .store import ModelStore, ModelVerdict, StoredFile, StoredModel

__all__ = ["ModelStore", "Progress", "StoredFile", "StoredModel", "ModelVerdict"]
