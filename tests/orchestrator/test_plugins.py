"""Plugins: other distributions that offer agents, tools, strategies and detectors, installed by pip."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from importlib import invalidate_caches
from importlib.util import find_spec
from pathlib import Path

import pytest
from typer.testing import CliRunner

from nearfar import ConfigError, Hybrid, InvalidRequest, Policy, PrivacyViolation, Role, ScriptedAgent, Side, Strategy, load_config
from nearfar.orchestrator.cli import app
from nearfar.orchestrator.cli.doctor import plugin_findings
from nearfar.orchestrator.hybrid.arguments import plugin_tools
from nearfar.orchestrator.safety.detection.standard import standard_detectors
from nearfar.orchestrator.strategies.builders import plugin_builder
from nearfar.orchestrator.util.plugins import find_plugin, find_plugins

pytestmark = pytest.mark.anyio

Entries = Mapping[str, Mapping[str, str]]
Install = Callable[..., None]
PUBLIC = Policy.model_validate({"strategy": "route", "sensitivity": "public"})

AGENT = '''
from nearfar import ScriptedAgent

def parrot(model, *, name, side, greeting="hello"):
    """Make an agent that says one thing, whatever it is asked."""
    return ScriptedAgent(lambda request: f"{greeting} from {model or 'nobody'}", name=name, side=side, model=model or "parrot-1")
'''
TOOLS = """
from nearfar import tool

@tool(effect="read", source="internal_tool")
def tide(place: str) -> str:
    "Say how high the tide is."
    return f"high in {place}"

@tool(effect="read", source="internal_tool")
def moon() -> str:
    "Say how the moon is."
    return "full"

TOOLS = [tide, moon]
"""
STRATEGY = """
from langgraph.graph import END, START, StateGraph
from nearfar import TaskContext, TaskNodes, TaskState, after_judge, after_step

async def sign(state):
    *before, answer = state["messages"]
    return {"messages": [*before, {**answer, "text": answer["text"] + " (signed)"}]}

def build(nodes: TaskNodes) -> StateGraph:
    graph = StateGraph(TaskState, TaskContext)
    graph.add_node("route", nodes.route)
    graph.add_node("act", nodes.act)
    graph.add_node("tools", nodes.run_tools)
    graph.add_node("judge", nodes.judge)
    graph.add_node("sign", sign)
    graph.add_edge(START, "route")
    graph.add_edge("route", "act")
    graph.add_conditional_edges("act", after_step, ["act", "tools", "judge", END])
    graph.add_edge("tools", "act")
    graph.add_conditional_edges("judge", lambda state: "sign" if after_judge(state) == END else "act", ["sign", "act"])
    graph.add_edge("sign", END)
    return graph
"""
FAILING = """
from langgraph.graph import END, START, StateGraph
from nearfar import TaskContext, TaskState

def build(nodes):
    graph = StateGraph(TaskState, TaskContext)
    graph.add_node("act", act)
    graph.add_edge(START, "act")
    graph.add_edge("act", END)
    return graph

async def act(state):
    pass"""
DETECTOR = '''
import re
from nearfar import PrivateFinding

class Patients:
    """Find the numbers of a clinic's patients."""

    def find(self, text):
        return [PrivateFinding(*match.span(), "patient", match[0]) for match in re.finditer(r"PT-\\d{6}", text)]

class Broken:
    def find(self, text):
        raise RuntimeError("out of order")

class Leaving:
    def find(self, text):
        raise SystemExit(3)

class Careless:
    def find(self, text):
        return [PrivateFinding(5, 10_000, "patient", "x")]
'''


@pytest.fixture
def target(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder of installed distributions, in which this process and its children look."""
    before, target = set(sys.modules), tmp_path / "site"
    target.mkdir()
    monkeypatch.syspath_prepend(target)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(target), *filter(None, [os.environ.get("PYTHONPATH")])]))
    yield target
    for module in set(sys.modules) - before:
        if module.startswith("nearfar_"):
            del sys.modules[module]
    standard_detectors.cache_clear()
    plugin_builder.cache_clear()


@pytest.fixture
def install(target: Path) -> Install:
    """Lay a small distribution there as pip would, which takes seconds for it."""

    def install(code: str, entries: Entries, *, name: str = "nearfar-extra") -> None:
        module = name.replace("-", "_")
        (target / f"{module}.py").write_text(code, encoding="utf-8")
        folder = target / f"{module}-1.2.3.dist-info"
        folder.mkdir()
        (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.2.3\n", encoding="utf-8")
        groups = [
            f"[nearfar.{kind}]\n" + "".join(f"{key} = {module}:{value}\n" for key, value in each.items()) for kind, each in entries.items()
        ]
        (folder / "entry_points.txt").write_text("\n".join(groups), encoding="utf-8")
        invalidate_caches()

    return install


@pytest.fixture
def pip_install(target: Path, tmp_path: Path) -> Install:
    """Build a small distribution and install it there with pip."""
    if not (find_spec("setuptools") and find_spec("pip")):  # setuptools cannot be imported where another test has imported distutils
        pytest.skip("setuptools and pip build the distribution")

    def install(code: str, entries: Entries, *, name: str = "nearfar-extra") -> None:
        project, module = tmp_path / name, name.replace("-", "_")
        project.mkdir()
        (project / f"{module}.py").write_text(code, encoding="utf-8")
        groups = [
            f'[project.entry-points."nearfar.{kind}"]\n' + "".join(f'{key} = "{module}:{value}"\n' for key, value in each.items())
            for kind, each in entries.items()
        ]
        build = '[build-system]\nrequires = ["setuptools"]\nbuild-backend = "setuptools.build_meta"\n'
        about = f'[project]\nname = "{name}"\nversion = "1.2.3"\n[tool.setuptools]\npy-modules = ["{module}"]\n'
        (project / "pyproject.toml").write_text("\n".join([build, about, *groups]), encoding="utf-8")
        options = ["--quiet", "--no-deps", "--no-index", "--no-build-isolation", "--disable-pip-version-check"]
        command = [sys.executable, "-m", "pip", "install", *options, "--target", str(target), str(project)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stderr
        invalidate_caches()

    return install


# Agents


async def test_a_plugin_makes_the_near_agent_and_the_far_one_behind_a_gateway(pip_install: Install, tmp_path: Path) -> None:
    pip_install(AGENT, {"agents": {"parrot": "parrot"}})
    path = tmp_path / "nearfar.toml"
    path.write_text(
        '[near]\nprovider = "parrot"\nmodel = "small"\n[far]\nprovider = "parrot"\nmodel = "big"\noptions = { greeting = "good day" }\n'
        '[policy]\nsensitivity = "public"\nstrategy = "route"\n'
    )
    async with Hybrid.from_config(path) as hybrid:
        near = await hybrid.run("Hello?", mode="only_on_device")
        far = await hybrid.run("Hello?", mode="only_in_cloud")
    assert (near.text, near.side, near.model) == ("hello from small", Side.NEAR, "small")
    assert (far.text, far.side) == ("good day from big", Side.FAR)


async def test_the_short_form_of_a_plugin_is_its_name_and_a_model(install: Install) -> None:
    install(AGENT, {"agents": {"parrot": "parrot"}})
    async with Hybrid(near="parrot:small") as hybrid:
        assert (await hybrid.run("Hello?")).text == "hello from small"


async def test_further_agents_may_be_plugins(install: Install, tmp_path: Path) -> None:
    install(AGENT, {"agents": {"parrot": "parrot"}})
    path = tmp_path / "nearfar.toml"
    path.write_text('[near]\nmodel = "near"\n[other_near.second]\nprovider = "parrot"\n[roles.a]\ninstructions = "Hi."\nagent = "second"\n')
    async with Hybrid.from_config(path) as hybrid:
        assert (await hybrid.run("Hello?", role="a")).text == "hello from nobody"


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("import there_is_no_such_module\ndef parrot(model, **_): ...", "plugin 'parrot'.*nearfar-extra 1.2.3.*cannot be loaded: Module"),
        ("parrot = 7", "must be a function that returns an Agent, not int"),
        ("def parrot(model, **_): return model", "must be a function that returns an Agent, not str"),
        ("def parrot(model): return model", "has made no agent: TypeError"),
        ("def parrot(model, **_): raise ValueError('no licence')", "has made no agent: ValueError: no licence"),
        (
            "class Bare:\n card = None\n step = aclose = print\ndef parrot(model, **_): return Bare()",
            "must be a function that returns an Agent, not Bare",
        ),
        (
            "from nearfar import ScriptedAgent, Side\ndef parrot(model, **_): return ScriptedAgent([], side=Side.FAR)",
            "has made an agent of the far side",
        ),
    ],
)  # fmt: skip
async def test_a_plugin_that_makes_no_agent_is_named(code: str, words: str, install: Install) -> None:
    install(code, {"agents": {"parrot": "parrot"}})
    async with Hybrid(near="parrot:small") as hybrid:
        with pytest.raises(ConfigError, match=words):
            await hybrid.run("Hello?")


def test_an_unknown_provider_is_an_error_that_lists_the_plugins(install: Install, tmp_path: Path) -> None:
    install(AGENT, {"agents": {"parrot": "parrot"}})
    path = tmp_path / "nearfar.toml"
    path.write_text('[far]\nprovider = "parot"\nmodel = "big"\n')
    with pytest.raises(ConfigError, match=r"line 2: far.provider: there is no provider 'parot'.*or a plugin: parrot"):
        load_config(path)
    path.write_text('[far]\nprovider = "parrot"\nmodle = "big"\n')
    with pytest.raises(ConfigError, match=r"line 3: far.modle: unknown key; did you mean 'model'"):
        load_config(path)


def test_a_secret_in_the_section_of_a_plugin_is_refused(install: Install, tmp_path: Path) -> None:
    install(AGENT, {"agents": {"parrot": "parrot"}})
    path = tmp_path / "nearfar.toml"
    path.write_text('[far]\nprovider = "parrot"\noptions = { api_key = "abc" }\n')
    with pytest.raises(ConfigError, match="a secret must not stand in the file"):
        load_config(path)


# Tools


async def test_the_tools_of_a_plugin_are_named_in_the_file_and_for_roles(pip_install: Install, tmp_path: Path) -> None:
    pip_install(TOOLS, {"tools": {"tides": "TOOLS", "moon": "moon"}})
    path = tmp_path / "nearfar.toml"
    path.write_text('tools = ["tides"]\n[near]\nmodel = "near"\n[roles.a]\ninstructions = "You are a."\ntools = ["tide"]\n')
    near = ScriptedAgent(["fine"], name="near")
    async with Hybrid.from_config(path, near=near) as hybrid:
        await hybrid.run("How high?", role="a")
    assert [each.name for each in near.requests[0].tools] == ["tide"]


def test_the_command_line_takes_the_tools_of_a_plugin(install: Install, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(AGENT + TOOLS, {"agents": {"parrot": "parrot"}, "tools": {"tides": "TOOLS"}})
    monkeypatch.chdir(tmp_path)
    served = CliRunner().invoke(app, ["run", "--json", "--near", "parrot:small", "--tools", "tides", "Hello?"])
    assert json.loads(served.stdout)["text"] == "hello from small"
    refused = CliRunner().invoke(app, ["run", "--json", "--near", "parrot:small", "--tools", "tidse", "Hello?"])
    assert "tidse" in json.loads(refused.stdout)["error"]["message"]


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("import there_is_no_such_module", "line 1: tools: plugin 'tides'.*cannot be loaded"),
        ("def TOOLS(): ...", "must be a tool or a list of tools, not function"),
        ("TOOLS = []", "must be a tool or a list of tools, not list"),
        ("raise SystemExit(3)", "cannot be loaded: SystemExit"),
    ],
)
def test_a_plugin_that_has_no_tools_is_named_with_the_line(code: str, words: str, install: Install, tmp_path: Path) -> None:
    install(code, {"tools": {"tides": "TOOLS"}})
    path = tmp_path / "nearfar.toml"
    path.write_text('tools = ["tides"]\n[near]\nmodel = "near"\n')
    with pytest.raises(ConfigError, match=words):
        Hybrid.from_config(path)


def test_a_plugin_that_is_not_installed_is_named_with_the_nearest_one(install: Install, tmp_path: Path) -> None:
    install(TOOLS, {"tools": {"tides": "TOOLS"}})
    path = tmp_path / "nearfar.toml"
    path.write_text('tools = ["tide"]\n[near]\nmodel = "near"\n')
    with pytest.raises(ConfigError, match=r"line 1: tools: there is no plugin 'tide' of nearfar.tools.*did you mean 'tides'"):
        Hybrid.from_config(path)


# Strategies


async def test_the_strategy_of_a_plugin_serves_tasks_and_roles(pip_install: Install, tmp_path: Path) -> None:
    pip_install(STRATEGY, {"strategies": {"signed": "build"}})
    near = ScriptedAgent(["first", "second", "third", "fourth"], name="near")
    far = ScriptedAgent([], name="far", side=Side.FAR)
    policy = Policy.model_validate({"strategy": "signed", "sensitivity": "public"})
    async with Hybrid(near=near, far=far, policy=policy, agents={"a": Role(instructions="Hi.")}, records=tmp_path / "runs") as hybrid:
        assert (await hybrid.run("Go.")).text == "first (signed)"
        assert (await hybrid.run("Go.", strategy="cascade")).text == "second"
        assert (await hybrid.run("Go.", strategy="signed", idempotency_key="r")).decision.strategy == "signed"
        assert (await hybrid.run("Go.", role="a")).text == "fourth (signed)"
        assert "sign" in hybrid.graph_of("signed").get_graph().nodes
        assert (await hybrid.resume("r")).text == "third (signed)"
    assert Strategy("signed") is Strategy("signed")
    assert "signed" not in list(Strategy)


def test_the_strategy_of_a_plugin_is_named_in_the_file(install: Install, tmp_path: Path) -> None:
    install(STRATEGY, {"strategies": {"signed": "build"}})
    path = tmp_path / "nearfar.toml"
    path.write_text('[near]\nmodel = "near"\n[policy]\nstrategy = "signed"\n')
    assert load_config(path).policy.strategy == "signed"
    path.write_text('[near]\nmodel = "near"\n[policy]\nstrategy = "unsigned"\n')
    with pytest.raises(ConfigError, match="line 4: policy.strategy"):
        load_config(path)


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("import there_is_no_such_module", "plugin 'odd'.*cannot be loaded"),
        ("build = 7", "must be a function from `TaskNodes` to a StateGraph, not int"),
        ("def build(nodes): return 7", "must be a function from `TaskNodes` to a StateGraph, not int"),
        ("def build(nodes): return nodes.no_such_node", "has built no graph: AttributeError"),
        ("def build(nodes): raise SystemExit(3)", "has built no graph: SystemExit"),
        (f"{FAILING}\n    raise KeyError(1)", "plugin 'odd'.*has failed: KeyError"),
    ],
)
async def test_a_plugin_that_builds_no_graph_is_named(code: str, words: str, install: Install) -> None:
    install(code, {"strategies": {"odd": "build"}})
    async with Hybrid(near=ScriptedAgent([]), policy=PUBLIC) as hybrid:
        with pytest.raises(ConfigError, match=words):
            await hybrid.run("Go.", strategy="odd")
        with pytest.raises(InvalidRequest):
            await hybrid.run("Go.", strategy="odder")


# Detectors


@pytest.mark.parametrize(
    ("name", "prompt", "leaves"),
    [
        ("patients", "Write to the ward.", True),
        ("patients", "Write about PT-123456.", False),
        ("broken", "Write to the ward.", False),
        ("leaving", "Write to the ward.", False),
        ("careless", "Write to the ward.", False),
        ("absent", "Write to the ward.", False),
    ],
)
async def test_what_a_plugin_finds_stays_and_one_that_fails_lets_nothing_leave(
    name: str, prompt: str, leaves: bool, install: Install, caplog: pytest.LogCaptureFixture
) -> None:
    entries = {"patients": "Patients", "broken": "Broken", "leaving": "Leaving", "careless": "Careless", "absent": "no_such_name"}
    install(DETECTOR, {"detectors": entries})
    far, near = ScriptedAgent(["from far"], name="far", side=Side.FAR), ScriptedAgent(["from near"], name="near")
    policy = Policy.model_validate(
        {"strategy": "route", "mode": "prefer_in_cloud", "sensitivity": "public", "privacy": {"detectors": [name]}}
    )
    async with Hybrid(near=near, far=far, policy=policy) as hybrid:
        result = await hybrid.run(prompt)
        assert result.text == ("from far" if leaves else "from near")
        if not leaves:
            with pytest.raises(PrivacyViolation):
                await hybrid.run(prompt, mode="only_in_cloud")
    assert len(far.requests) == (1 if leaves else 0)
    assert (f"plugin '{name}'" in caplog.text) == (name != "patients")


async def test_placeholders_stand_for_what_a_plugin_finds(pip_install: Install) -> None:
    pip_install(DETECTOR, {"detectors": {"patients": "Patients"}})
    far = ScriptedAgent(lambda request: f"about {request.messages[-1].text.split()[-1]}", name="far", side=Side.FAR)
    privacy = {"detectors": ["patients"], "findings": "placeholder"}
    policy = Policy.model_validate({"strategy": "cloud", "sensitivity": "public", "privacy": privacy})
    async with Hybrid(far=far, policy=policy) as hybrid:
        result = await hybrid.run("Write about PT-123456")
    assert "PT-123456" not in far.requests[0].model_dump_json()
    assert result.text == "about PT-123456"


def test_a_detector_that_is_not_installed_is_refused_at_once(install: Install) -> None:
    install(DETECTOR, {"detectors": {"patients": "Patients"}})
    policy = Policy.model_validate({"privacy": {"detectors": ["patient"]}})
    with pytest.raises(ConfigError, match=r"policy.privacy.detectors: there is no plugin 'patient'"):
        Hybrid(near=ScriptedAgent([]), policy=policy)


# All together


def test_no_plugin_is_imported_before_it_is_named(install: Install, tmp_path: Path) -> None:
    mark = tmp_path / "imported"
    install(f"import pathlib\npathlib.Path({str(mark)!r}).touch()\n" + AGENT, {"agents": {"parrot": "parrot"}, "tools": {"t": "parrot"}})
    code = "import nearfar\nfrom nearfar import Hybrid, Policy, ScriptedAgent\nHybrid(near=ScriptedAgent([]))\nPolicy(strategy='eva')"
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert [plugin.name for plugin in find_plugins("agents")] == ["parrot"]
    assert not mark.exists()


def test_doctor_shows_each_plugin_with_its_distribution_and_state(install: Install) -> None:
    install(AGENT + TOOLS + STRATEGY + DETECTOR, {
        "agents": {"parrot": "parrot", "openai": "parrot"},
        "tools": {"tides": "TOOLS", "bad": "no_such_name"},
        "strategies": {"signed": "build", "cascade": "build"},
        "detectors": {"patients": "Patients", "odd name": "Patients"},
    })  # fmt: skip
    found = {each.name: each for each in plugin_findings()}
    states = {name: each.status for name, each in found.items()}
    assert states == {
        "agents: parrot": "ok",
        "agents: openai": "broken",
        "tools: tides": "ok",
        "tools: bad": "broken",
        "strategies: signed": "ok",
        "strategies: cascade": "broken",
        "detectors: patients": "ok",
        "detectors: odd name": "broken",
    }
    assert found["agents: parrot"].detail == "nearfar-extra 1.2.3"
    assert "the name is taken" in found["strategies: cascade"].detail
    assert "AttributeError" in found["tools: bad"].detail


async def test_the_templates_of_the_page_are_plugins_of_each_kind(install: Install) -> None:
    page = (Path(__file__).parents[2] / "docs" / "agents.md").read_text(encoding="utf-8")
    code = page.partition("# nearfar_extra.py\n")[2].partition("```")[0]
    entries = {"agents": {"parrot": "make_agent"}, "tools": {"tide": "tide"}, "strategies": {"plain": "build"}}
    install(code, {**entries, "detectors": {"patients": "Patients"}})
    assert {each.status for each in plugin_findings()} == {"ok"}
    policy = Policy.model_validate({"strategy": "plain", "privacy": {"detectors": ["patients"]}})
    async with Hybrid(near="parrot:", tools=plugin_tools(["tide"]), policy=policy) as hybrid:
        assert (await hybrid.run("Hello?")).text == "Pieces of eight!"
    assert [each.type for each in standard_detectors(None, ("patients",)).find("PT-123456")][-1] == "plugin_patient"


def test_two_plugins_of_one_name_are_refused(install: Install) -> None:
    install(TOOLS, {"tools": {"tides": "TOOLS"}})
    install(TOOLS, {"tools": {"tides": "TOOLS"}}, name="nearfar-other")
    with pytest.raises(ConfigError, match=r"two plugins .* are called 'tides': those of nearfar-extra 1.2.3 and nearfar-other"):
        find_plugin("tools", "tides")
    assert {each.status for each in plugin_findings()} == {"broken"}


async def test_a_plugin_with_the_name_of_a_provider_never_replaces_it(install: Install, tmp_path: Path) -> None:
    install(AGENT, {"agents": {"openai": "parrot"}})
    path = tmp_path / "nearfar.toml"
    path.write_text('[far]\nprovider = "openai"\nmodel = "m"\nbase_url = "http://127.0.0.1:1/v1"\n')
    far = load_config(path).far
    assert type(far).__name__ == "ProviderConfig"
