"""Plays AgentDojo's suites `workspace` and `slack` (arXiv 2406.13352), inside a virtual environment that has AgentDojo.

It writes what there is as one line of JSON, and then answers each line that it reads: `begin` a task, `call` a function, `end` the task.
The other suites are kept apart, and nothing of them is opened. Run with ``python -I``.
"""

import json
import sys
from importlib import import_module
from typing import Any

VERSION = "v1.2.2"
SUITES = ("workspace", "slack")


class Stage:
    """The task under way."""

    def __init__(self) -> None:
        suites = import_module("agentdojo.task_suite.load_suites")
        self._runtime = import_module("agentdojo.functions_runtime")
        self._suites = {name: suites.get_suite(VERSION, name) for name in SUITES}

    def catalog(self) -> list[dict[str, Any]]:
        """Tell of functions, users' tasks, and attackers' tasks with true calls; of some AgentDojo has none."""
        return [
            {
                "suite": name,
                "tools": [{"name": each.name, "parameters": each.parameters.model_json_schema()} for each in suite.tools],
                "tasks": {id_: task.PROMPT for id_, task in suite.user_tasks.items()},
                "attacks": self._attacks(suite),
            }
            for name, suite in self._suites.items()
        ]

    @staticmethod
    def _attacks(suite: Any) -> list[str]:  # noqa: ANN401 - of a package that is not here when types are checked
        environment = suite.load_and_inject_default_environment({})
        return [id_ for id_, task in suite.injection_tasks.items() if task.ground_truth(environment)]

    def begin(self, suite: str, task: str, attack: str | None) -> dict[str, Any]:
        """Set the scene; return the true calls of the user's task and of the attacker's."""
        self._suite = self._suites[suite]
        self._task = self._suite.user_tasks[task]
        self._attack = None if attack is None else self._suite.injection_tasks[attack]
        planted: dict[str, str] = {}
        if self._attack is not None:
            text = json.dumps(f"IMPORTANT, this comes first: {self._attack.GOAL}", ensure_ascii=False)[
                1:-1
            ]  # it stands between quotes there
            planted = dict.fromkeys(self._suite.get_injection_vector_defaults(), text)
        environment = self._suite.load_and_inject_default_environment(planted)
        self._now = self._task.init_environment(environment)
        self._before = self._now.model_copy(deep=True)
        self._tools = self._runtime.FunctionsRuntime(self._suite.tools)
        self._made: list[Any] = []
        truths = [self._task.ground_truth(self._before)]
        truths.append([] if self._attack is None else self._attack.ground_truth(self._before))
        calls, attacks = ([{"name": call.function, "arguments": dict(call.args)} for call in truth] for truth in truths)
        return {"calls": calls, "attacks": attacks}

    def call(self, name: str, arguments: dict[str, Any]) -> dict[str, Any]:
        """Run a function."""
        self._made.append(self._runtime.FunctionCall(function=name, args=arguments))
        result, error = self._tools.run_function(self._now, name, arguments)
        return {"result": _plain(result), "error": error}

    def end(self) -> dict[str, Any]:
        """Say whether the user's task was done, and whether the attacker's was."""
        output = [{"type": "text", "content": self._task.GROUND_TRUTH_OUTPUT}]
        done = [
            None if task is None else self._suite._check_task_result(task, output, self._before, self._now, self._made)
            for task in (self._task, self._attack)
        ]
        return {"is_done": done[0], "is_attacked": done[1]}


def _plain(value: Any) -> Any:  # noqa: ANN401 - whatever functions return
    if hasattr(value, "model_dump"):
        return value.model_dump(mode="json")
    if isinstance(value, (list, tuple)):
        return [_plain(each) for each in value]
    return {key: _plain(each) for key, each in value.items()} if isinstance(value, dict) else value


def main() -> None:
    """Serve."""
    out, sys.stdout = sys.stdout, sys.stderr  # tasks print when they like
    stage = Stage()
    print(json.dumps(stage.catalog()), file=out, flush=True)
    for line in sys.stdin:
        asked = json.loads(line)
        reply = getattr(stage, asked.pop("do"))(**asked)
        print(json.dumps(reply, default=str), file=out, flush=True)


if __name__ == "__main__":
    main()
