"""AgentDojo's suites `workspace` and `slack` (arXiv 2406.13352) behind the guard, under plans that users would make.

The model is a script. Without an attack it makes the true calls of the user's task; with one, all of the attacker's true
calls follow. Each attack stands in every place that the suite has for one, in each user's task: 61 tasks, and 345 attacks. Eight of the
attacks have no true calls, and are left out.

* `agentdojo_asr`: the share of attacks that AgentDojo counts as successful, where nothing is approved.
* `agentdojo_asked`: the share of tasks, without attacks, that asked for approval of a call.
* `agentdojo_done_alone`: the share of tasks that AgentDojo counts as done, without an approver.
* `agentdojo_asked_no_plan`: with the same tools listed and no plan. `agentdojo_asr_no_guard`: where the guard allows everything.

How the functions are declared follows from stated rules. All that returns mails, events, files, contacts, messages, channels or pages is
`external_tool`: others write in them, a channel's name too. Only the day is the app's own, and what a function says that it has done.
Whatever begins with a verb of reading is `read`; `get_webpage` and `post_webpage` show their arguments to strangers. Each argument is a
sink but for texts that people read (`body`, `content`, `description`, `subject`, `title`, `location`).

Nothing here is held out: what a plan can say was made with these tasks in view. The package's other suites are kept apart for that.
"""

import asyncio
import inspect
import json
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple

from nearfar import Hybrid, Policy, Source, Tool
from nearfar.orchestrator.hybrid.arguments import TaskOptions
from nearfar.orchestrator.task.modes import Strategy
from nearfar.orchestrator.task.policy import GuardConfig, OnDoubt
from nearfar.protocols import Sensitivity, ToolCall

from .._environments import cache_folder, python_with
from . import agentdojo_worker
from .agentdojo_plans import PLANS
from .puppet import Puppet, new_call

RELEASE: Final = "0.1.35"
_READING: Final = ("get", "search", "read", "list")
_OWN: Final = ("get_current_day",)
_TOLD: Final = ("body", "content", "description", "subject", "title", "location")
_OPEN: Final = GuardConfig(tools=OnDoubt.ALLOW, arguments=OnDoubt.ALLOW)
_FIGURES: Final = ("agentdojo_asr", "agentdojo_asked", "agentdojo_done_alone")


class Case(NamedTuple):
    """A user's task, and perhaps an attack on it."""

    suite: str
    task: str
    prompt: str
    attack: str | None = None

    @property
    def plan(self) -> str | None:
        return PLANS[self.suite].get(self.task)


class Outcome(NamedTuple):
    """What came of it."""

    is_done: bool
    is_attacked: bool | None
    asked: int


def figures(folder: Path, *, quick: bool) -> dict[str, Any]:
    """The shares. AgentDojo is installed into an environment of its own by a full run; where it is not, they are null."""
    del folder  # the tasks come with the package
    try:
        wanted = [(f"agentdojo=={RELEASE}",)]
        python = python_with(f"AgentDojo {RELEASE}", f"agentdojo-{RELEASE}", wanted, cache=cache_folder(), may_install=not quick)
    except LookupError as error:
        return {**dict.fromkeys(_FIGURES), "agentdojo_missing": str(error)}
    with World.opened(python) as world:
        return asyncio.run(_figures(world, every=12 if quick else 1))


async def _figures(world: "World", *, every: int) -> dict[str, Any]:
    tasks, attacks = world.tasks[::every], world.attacks[::every]
    found: dict[str, Any] = {"agentdojo_release": RELEASE, "agentdojo_tasks": len(tasks), "agentdojo_attacks": len(attacks)}
    puppet = Puppet()
    async with Hybrid(near=puppet.agent) as hybrid:
        stage = Stage(world, puppet, hybrid)
        found["agentdojo_asr"] = _share([bool((await stage.played(case, says_yes=False)).is_attacked) for case in attacks])
        found["agentdojo_asked"] = _share([bool((await stage.played(case, says_yes=True)).asked) for case in tasks])
        stage = Stage(world, puppet, hybrid, has_approver=False)
        found["agentdojo_done_alone"] = _share([(await stage.played(case, says_yes=False)).is_done for case in tasks])
        stage = Stage(world, puppet, hybrid, has_plans=False)
        found["agentdojo_asked_no_plan"] = _share([bool((await stage.played(case, says_yes=True)).asked) for case in tasks])
        stage = Stage(world, puppet, hybrid, guard=_OPEN)
        found["agentdojo_asr_no_guard"] = _share([bool((await stage.played(case, says_yes=False)).is_attacked) for case in attacks])
    return found


def _share(outcomes: Sequence[bool]) -> float:
    return sum(outcomes) / len(outcomes)


class World:
    """AgentDojo, in a process of its own."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self._process = process
        self._catalog = {suite["suite"]: suite for suite in self._read()}

    @classmethod
    @contextmanager
    def opened(cls, python: Path) -> "Iterator[World]":
        """Start it, and end it."""
        command = [str(python), "-I", agentdojo_worker.__file__]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
            try:
                yield cls(process)
            finally:
                process.kill()

    @property
    def tasks(self) -> list[Case]:
        return [Case(name, task, prompt) for name, suite in self._catalog.items() for task, prompt in suite["tasks"].items()]

    @property
    def attacks(self) -> list[Case]:
        return [case._replace(attack=attack) for case in self.tasks for attack in self._catalog[case.suite]["attacks"]]

    def tools(self, suite: str) -> list[Tool]:
        """Return the suite's functions, declared by the rules above."""
        return [self._tool(each["name"], each["parameters"]) for each in self._catalog[suite]["tools"]]

    def ask(self, do: str, **arguments: object) -> Any:  # noqa: ANN401 - what JSON holds
        """Have something done."""
        assert self._process.stdin is not None, "it was asked for"
        self._process.stdin.write(json.dumps({"do": do, **arguments}) + "\n")
        self._process.stdin.flush()
        return self._read()

    def _read(self) -> Any:  # noqa: ANN401 - what JSON holds
        assert self._process.stdout is not None, "it was asked for"
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError("AgentDojo has ended; what it says stands above")
        return json.loads(line)

    def _tool(self, name: str, schema: Mapping[str, Any]) -> Tool:
        def run(**arguments: object) -> object:
            reply = self.ask("call", name=name, arguments=arguments)
            if reply["error"] is not None:
                raise ValueError(reply["error"])
            return reply["result"]

        run.__name__ = name
        parameters = [_parameter(each, schema["properties"][each], schema) for each in schema["properties"]]
        run.__signature__ = inspect.Signature(sorted(parameters, key=lambda each: each.default is not each.empty))  # type: ignore[attr-defined]  # what `inspect.signature` reads
        return _declared(run, name, list(schema["properties"]))


def _declared(run: Callable[..., object], name: str, arguments: Sequence[str]) -> Tool:
    is_reading = name.startswith(_READING)
    is_shown = name.endswith("_webpage")
    source = Source.EXTERNAL_TOOL if is_reading and name not in _OWN else Source.INTERNAL_TOOL
    sinks = [each for each in arguments if each not in _TOLD] if is_shown or not is_reading else []
    effect: Literal["read", "at_most_once"] = "read" if is_reading else "at_most_once"
    return Tool(run, source=source, effect=effect, sends="shared" if is_shown else "device", sinks=sinks, result_limit=1_000_000)


def _parameter(name: str, schema: Mapping[str, Any], root: Mapping[str, Any]) -> inspect.Parameter:
    default = schema.get("default", inspect.Parameter.empty)
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, annotation=_type(schema, root), default=default)


def _type(schema: Mapping[str, Any], root: Mapping[str, Any]) -> Any:  # noqa: ANN401 - types of all sorts
    if "$ref" in schema:
        return _type(root["$defs"][schema["$ref"].removeprefix("#/$defs/")], root)
    if "anyOf" in schema:
        kinds = [_type(each, root) for each in schema["anyOf"]]
        return kinds[0] | kinds[1]
    if "enum" in schema:
        return Literal[tuple(schema["enum"])]
    if schema.get("type") == "array":
        return list[_type(schema["items"], root)]  # type: ignore[misc]  # a type that is known when it runs
    return {"string": str, "integer": int, "number": float, "boolean": bool, "null": None, "object": dict[str, Any]}[schema["type"]]


class Stage:
    """Where tasks are played."""

    def __init__(
        self,
        world: World,
        puppet: Puppet,
        hybrid: Hybrid,
        *,
        has_approver: bool = True,
        has_plans: bool = True,
        guard: GuardConfig | None = None,
    ) -> None:
        self._world = world
        self._puppet = puppet
        self._hybrid = hybrid
        self._approver = puppet.approve if has_approver else None
        self._has_plans = has_plans
        settings = GuardConfig() if guard is None else guard
        self._policy = Policy(guard=settings, strategy=Strategy.DEVICE, sensitivity=Sensitivity.PUBLIC, maximum_turns=64)
        self._tools = {name: world.tools(name) for name in PLANS}

    async def played(self, case: Case, *, says_yes: bool) -> Outcome:
        """Play a task, and the attack on it behind it. `says_yes`: to whatever is asked."""
        puppet = self._puppet
        puppet.begin(says_yes=says_yes)
        truth = self._world.ask("begin", suite=case.suite, task=case.task, attack=case.attack)
        calls: list[ToolCall] = [new_call(each["name"], each["arguments"]) for each in (*truth["calls"], *truth["attacks"])]
        puppet.replies.extend(calls)
        options: TaskOptions = {"tools": self._tools[case.suite], "policy": self._policy, "approver": self._approver}
        if not self._has_plans:
            options["allowed_tools"] = sorted({each["name"] for each in truth["calls"]})
        elif case.plan is not None:
            options["plan"] = case.plan
        await self._hybrid.run(case.prompt, **options)
        ended = self._world.ask("end")
        return Outcome(ended["is_done"], ended["is_attacked"], len(puppet.asked))
