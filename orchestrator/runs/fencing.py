"""Who has lost a run writes nothing into it any more, however late it notices."""

from ...protocols import RunBusy
from ..storage.tables import Session
from .run import Lease


def held(session: Session, lease: Lease, *, steps: int = 0) -> bool:
    """Check that the lease stands, and let it stand for the whole transaction; count the steps.

    Returns whether the run is to be cancelled. Raises `RunBusy` where somebody else has it.
    """
    statement = "UPDATE runs SET steps = steps + ? WHERE run = ? AND epoch = ? AND owner IS NOT NULL RETURNING is_cancelled"
    found = session.execute(statement, (steps, lease.run, lease.epoch)).fetchone()
    if found is None:
        raise RunBusy(f"run {lease.run} was taken over by another process", hint="this one writes nothing more into it")
    return bool(found[0])
