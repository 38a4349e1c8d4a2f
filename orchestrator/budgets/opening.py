"""From the `[runs]` section to the book of budgets that it names."""

from collections.abc import Callable
from datetime import datetime
from typing import Final

from ..storage.owners import Owner
from ..storage.sqlite.database import Database
from ..storage.sqlite.errors import Naming
from ..task.sections.runs import RunsConfig
from .book import BudgetBook
from .storage import SharedStorage, Storage

_NAMING: Final = Naming("book of budgets", "remove the file: what was spent is forgotten with it")


def open_budgets(config: RunsConfig, *, clock: Callable[[], datetime] = datetime.now) -> BudgetBook:
    """Open the book that is shared by all processes which name the same folder or database.

    Reservations of dead processes are counted as spent. Raises `StoreUnavailable` or `StoreCorrupt`, and `ConfigError` if the address of
    a database is not set.
    """
    book = BudgetBook(_storage(config), clock)
    book.release_dead()
    return book


def _storage(config: RunsConfig) -> Storage:
    if config.postgres_variable is None:
        owner = Owner(config.folder / "owners")
        owner.sweep()
        return SharedStorage(Database(config.folder / "budgets.db", _NAMING), owner)
    from ..storage.postgres.database import PostgresDatabase
    from ..util.secrets import secret
    from .postgres import ServerOwner

    database = PostgresDatabase(secret(config.postgres_variable), what="book of budgets")
    return SharedStorage(database, ServerOwner(database))
