"""A program that serves tasks under each strategy, and kills itself at each step of an agent or a tool; then it goes on.

    python killed_runs.py FOLDER STRATEGY

It prints, for each point at which it died, what came of the run in the end, and how many times each tool call had its effect.
"""

import json
import os
import signal
import sys
import traceback
from collections import Counter
from importlib import import_module
from pathlib import Path
from typing import Any, Final

import anyio

from nearfar import Hybrid, MinionsConfig, Mode, Policy, Role, tool
from nearfar.orchestrator.task.stores import RunsConfig
from nearfar.protocols import Message, ScriptedAgent, Sensitivity, Side, StepRequest, ToolCall
from nearfar.protocols.fakes import Reply

TASK: Final = "Find the emblem of East Calder."
CONTEXT: Final = "".join(line.ljust(140, "\n") for line in ("East Calder lies on a river.", "Its emblem is a bridge.", "It has a mill."))
NEEDS: Final[dict[str, list[str]]] = {"a": [], "b": [], "c": ["a", "b"]}
PLAN: Final = {"subtasks": [{"id": name, "task": f"part {name}", "needs": needs} for name, needs in NEEDS.items()]}
JOBS: Final = {"jobs": [{"instruction": "What is the emblem?", "advice": "be brief"}]}
FOUND: Final = {"explanation": "It says so.", "citation": "emblem is a bridge", "answer": "a bridge"}
NOTHING: Final = {"explanation": "Not here.", "citation": None, "answer": None}
ROLES: Final = {
    "first": Role(instructions="You are the first.", tools=("look",), mode=Mode.ONLY_ON_DEVICE),
    "second": Role(instructions="You are the second.", tools=("look",), mode=Mode.ONLY_IN_CLOUD),
}
ANSWER: Final = {"answer": "a bridge", "scratchpad": "", "jobs": []}


class World:
    """Agents whose answers depend on what they are asked alone, and a tool that leaves a line in a file; each step is counted."""

    def __init__(self, folder: Path, strategy: str, dies_at: int) -> None:
        self._folder = folder
        self._strategy = strategy
        self._left = dies_at

    def step(self) -> None:
        """Die here, where it is the time."""
        self._left -= 1
        if self._left == 0:
            os.kill(os.getpid(), signal.SIGKILL)

    def near(self, request: StepRequest) -> Reply:
        self._note("asked")
        self.step()
        if self._strategy == "minions":
            return json.dumps(FOUND if "emblem is" in request.messages[-1].text else NOTHING)
        looked = sum(message.role == "tool" for message in request.messages)
        if self._strategy == "roles" and looked:
            return ToolCall(id="over", name="hand_off_to_second", arguments={"task": "look once more"})
        if looked == (1 if self._strategy == "subtasks" else 2):
            return "a bridge"
        return [ToolCall(id=f"call-{looked}", name="look", arguments={"page": self._page(looked)})]

    def _page(self, looked: int) -> int:
        """Agents hardly ever say the same twice: in a part, each process would look at another page."""
        return os.getpid() if self._strategy == "subtasks" else looked

    def far(self, request: StepRequest) -> Reply:
        if self._strategy == "speculate":
            return self.near(request)
        self._note("asked")
        self.step()
        if self._strategy == "minions":
            return json.dumps(ANSWER if "a bridge" in request.messages[-1].text else JOBS)
        if self._strategy == "roles":
            looked = sum(message.tool_result.name == "look" for message in request.messages if message.tool_result is not None)
            return "a bridge" if looked == 2 else ToolCall(id="again", name="look", arguments={"page": looked})
        if self._strategy == "subtasks":
            return json.dumps(PLAN) if request.messages[0].text.startswith("Cut the task") else "a bridge"
        return "CONTINUE\n1. look(page=0)\n2. look(page=1)\n3. answer"

    def look(self, page: int) -> str:
        """Read a page."""
        self.step()
        self._note("lines", page)
        self.step()
        return f"page {page} was read"

    def _note(self, name: str, what: int = 0) -> None:
        with (self._folder / name).open("a", encoding="utf-8") as file:
            file.write(f"{what}\n")


async def serve(folder: Path, strategy: str, dies_at: int) -> None:
    world = World(folder, strategy, dies_at)
    near, far = ScriptedAgent(world.near, name="near"), ScriptedAgent(world.far, name="far", side=Side.FAR)
    served = {"roles": "route", "opinion": "eva"}.get(strategy, strategy)
    others: dict[str, dict[str, Any]] = {"roles": dict(ROLES), "opinion": {"second": ScriptedAgent(world.near, name="second")}}
    agents = others.get(strategy, {})
    evidence = {"second_opinion": "second"} if strategy == "opinion" else {}
    policy = Policy.model_validate(
        {"strategy": served, "sensitivity": Sensitivity.PUBLIC, "supervision": {"interval": 1}, "evidence": evidence}
    )
    policy = policy.model_copy(update={"minions": MinionsConfig(chunk_characters=140, overlap_characters=0)})
    look = tool(effect="at_most_once")(world.look)
    options = {"minions": {"context": CONTEXT}, "roles": {"role": "first"}}.get(strategy, {})
    records = RunsConfig(folder=folder / "runs")
    async with Hybrid(near=near, far=far, tools=[look], agents=agents, policy=policy, records=records) as hybrid:
        result = await hybrid.run([Message.user(TASK)], idempotency_key="the run", **options)  # type: ignore[arg-type]  # a TypedDict
        again = await hybrid.resume("the run")
        assert again == result
        (folder / "answer").write_text(result.text, encoding="utf-8")


def in_child(folder: Path, strategy: str, dies_at: int) -> bool:
    """Whether the child came to its end."""
    child = os.fork()
    if child == 0:
        try:
            anyio.run(serve, folder, strategy, dies_at)
        except BaseException:  # the child's own boundary
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert code in (0, -signal.SIGKILL), f"the child ended with {code}"
    return code == 0


def main() -> None:
    for module in ("nearfar.orchestrator.strategies.graphs", "jsonschema", "anyio._backends._asyncio"):
        import_module(module)  # Once here, and not in each child.
    root, strategy = Path(sys.argv[1]), sys.argv[2]
    outcomes = []
    for point in range(1, 40):
        folder = root / str(point)
        folder.mkdir()
        survived = in_child(folder, strategy, point)
        if not survived:
            assert in_child(folder, strategy, 0), "the second process finishes it"
        lines = (folder / "lines").read_text(encoding="utf-8").split() if (folder / "lines").exists() else []
        asked = len((folder / "asked").read_text(encoding="utf-8").split())
        most = max(Counter(lines).values(), default=0)
        outcomes.append({"answer": (folder / "answer").read_text(encoding="utf-8"), "most": most, "effects": len(lines), "asked": asked})
        if survived:
            break
    sys.stdout.write(json.dumps(outcomes))


if __name__ == "__main__":
    main()
