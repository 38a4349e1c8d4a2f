"""`Purchase`: the budget's choice whether the supervisor of a task is asked, as the nodes of its graph make it and keep it."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ...protocols import Side
from ..routing.steering import is_supervision_weighed
from ..routing.supervision import SupervisionChoice
from .calls import TaskRuntime
from .state import Json, TaskState, as_json

if TYPE_CHECKING:
    from .graphs import TaskNodes
    from .supervised import Oversight


class Purchase:
    """The choice for one task. It is made once, and counted again where the task went another way in the end."""

    def __init__(self, nodes: "TaskNodes", view: "Oversight", runtime: TaskRuntime) -> None:
        self._view = view
        self._is_made = view.decision.is_supervisor_bought
        self._choice: SupervisionChoice | None = None
        task, supervisor = view.task, view.decision.supervisor
        if supervisor is not None and is_supervision_weighed(task.policy.router, view.decision):
            account = nodes.context(runtime).account
            commitments = None if account is None else account.commitments
            prices = nodes.pool[supervisor].prices
            self._choice = SupervisionChoice(nodes.router.steering, task, view.decision, prices=prices, commitments=commitments)

    @property
    def counts_tasks(self) -> bool:
        """A budget chooses in every task, and not only where the supervisor would be asked anyway."""
        return self._choice is not None and self._choice.counts_tasks

    @property
    def price(self) -> float:
        """The worth, in right outcomes, that a budget of dollars asks one call of the supervisor to bring."""
        return 0.0 if self._choice is None else self._choice.price

    @property
    def noted(self) -> TaskState:
        """The state's update that keeps the choice."""
        if self._is_made is self._view.decision.is_supervisor_bought:
            return {}
        return {"decision": as_json(self._view.decision.model_copy(update={"is_supervisor_bought": self._is_made}))}

    @property
    def refusal(self) -> str:
        return f"{self._view.decision.supervisor} is not asked, as the budget has better uses; {self._view.executor} goes on alone"

    def is_made(self, gain: float | None = None) -> bool:
        """Return whether the supervisor may be asked. The first call chooses; `gain`: see `SupervisionChoice.buys`."""
        if self._choice is not None and self._is_made is None:
            self._is_made = self._choice.buys(gain)
        return self._is_made is not False

    def conclude(self, calls: Sequence[Json]) -> None:
        """Count the task at its end. `calls`: all that were made."""
        if self._choice is None:
            return
        went_far = any(call["side"] == Side.FAR for call in calls)
        if self._is_made is None:
            self._choice.pass_by(went_far=went_far)
        elif went_far is not self._is_made:
            self._choice.correct(went_far=went_far)
