"""From the `[runs]` section to the book of budgets that it names."""

from collections.abc import Callable
from datetime import datetime

from ..runs.settings import RunsConfig
from .book import BudgetBook
from .storage import FileStorage


def open_budgets(config: RunsConfig, *, clock: Callable[[], datetime] = datetime.now) -> BudgetBook:
    """The book that all processes share which name the same folder; what processes left reserved that have died counts as spent.

    Raises `StoreUnavailable` or `StoreCorrupt`.
    """
    book = BudgetBook(FileStorage(config.folder), clock)
    book.release_dead()
    return book
