"""A world of passages that are searched and opened."""

from .facts import Facts, PassageIndex
from .questions import Author, Question
from .world import SearchWorld

__all__ = ["Author", "Facts", "PassageIndex", "Question", "SearchWorld"]
