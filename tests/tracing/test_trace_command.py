"""`nearfar trace`, and its page."""

import json
import re
import stat
from contextlib import closing
from html.parser import HTMLParser
from pathlib import Path

import anyio
import pytest
from traced_tasks import LOOKUP, hybrid
from typer.testing import CliRunner

from nearfar import tool
from nearfar.orchestrator.cli import app
from nearfar.orchestrator.task.stores import RunsConfig
from nearfar.orchestrator.tracing import insert_entries, open_traces
from nearfar.protocols import ToolCall

runner = CliRunner()


@pytest.fixture
def configuration(tmp_path: Path, config: RunsConfig) -> Path:
    """Names the folder in which one run is recorded."""

    async def run() -> None:
        async with hybrid([LOOKUP, "<b>Tomas</b>"], [LOOKUP, "Mira Falk"], records=config) as agents:
            await agents.run("Who leads <script>Orbix</script>?", strategy="cascade", idempotency_key="r1")

    anyio.run(run)
    path = tmp_path / "nearfar.toml"
    path.write_text(f'[near]\nmodel = "near"\n[runs]\nfolder = "{config.folder}"\n')
    return path


def test_show_prints_each_step_with_its_side_and_cost(configuration: Path) -> None:
    shown = runner.invoke(app, ["trace", "show", "r1", "--config", str(configuration)])
    assert shown.exit_code == 0, shown.output
    for expected in ("near near execute", "far far execute", 'lookup(entity="Orbix Labs")', "near rejected", "done by far", "$0.0"):
        assert expected in shown.output


def test_show_prints_json(configuration: Path) -> None:
    shown = runner.invoke(app, ["trace", "show", "r1", "--json", "--config", str(configuration)])
    assert [entry["type"] for entry in json.loads(shown.output)["entries"]][-1] == "ended"


@tool(effect="idempotent")
async def note(text: str) -> str:
    """Write something down."""
    return "noted"


def _looked_up(*asked: str | ToolCall) -> list[ToolCall | str]:
    """Look up entities, one a turn, between other calls; then answer."""
    made = [ToolCall(id="-", name="lookup", arguments={"entity": each}) if isinstance(each, str) else each for each in asked]
    return [*(call.model_copy(update={"id": f"{at}"}) for at, call in enumerate(made)), "It is Mira Falk."]


@pytest.mark.parametrize(
    ("near", "counts"),
    [
        (_looked_up("Orbix Labs"), {"made": 1, "redundant": 0, "unnecessary": 0}),
        (_looked_up("Orbix Labs", "orbix  labs"), {"made": 2, "redundant": 1, "unnecessary": 0}),
        (_looked_up("Orbix Labs", "Elin Dahl"), {"made": 2, "redundant": 0, "unnecessary": 1}),
        (
            _looked_up("Orbix Labs", ToolCall(id="n", name="note", arguments={"text": "x"}), "Orbix Labs"),
            {"made": 2, "redundant": 0, "unnecessary": 1},
        ),
        (["Mira Falk"], None),
    ],
    ids=["used", "redundant", "unnecessary", "after a change", "none"],
)
def test_show_counts_redundant_and_unnecessary_look_ups(
    near: list[ToolCall | str], counts: dict[str, int] | None, tmp_path: Path, config: RunsConfig
) -> None:
    async def run() -> None:
        async with hybrid(near, [], records=config) as agents:
            await agents.run("Who leads Orbix?", strategy="device", idempotency_key="r1", tools=[note])

    anyio.run(run)
    path = tmp_path / "nearfar.toml"
    path.write_text(f'[near]\nmodel = "near"\n[runs]\nfolder = "{config.folder}"\n')
    asked = ["trace", "show", "r1", "--config", str(path)]
    assert json.loads(runner.invoke(app, [*asked, "--json"]).output)["look_ups"] == counts
    assert ("redundant" in runner.invoke(app, asked).output) == (counts is not None)


def test_list_prints_what_came_of_each(configuration: Path) -> None:
    shown = runner.invoke(app, ["trace", "list", "--json", "--config", str(configuration)])
    [line] = json.loads(shown.output)
    assert (line["run"], line["outcome"], line["agent"]) == ("r1", "done", "far")


def test_a_damaged_trace_is_listed_beside_the_others(configuration: Path, config: RunsConfig) -> None:
    with closing(open_traces(config)) as store:
        store.submit(lambda session: insert_entries(session, "r0", "", [("began", "{}")])).result()
    shown = runner.invoke(app, ["trace", "list", "--json", "--config", str(configuration)])
    assert {line["run"]: line["outcome"] for line in json.loads(shown.output)} == {"r0": "damaged", "r1": "done"}


def test_an_unknown_run_is_an_error(configuration: Path) -> None:
    shown = runner.invoke(app, ["trace", "show", "r2", "--json", "--config", str(configuration)])
    assert (shown.exit_code, json.loads(shown.output)["error"]["type"]) == (2, "NotFound")


class _Parsed(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)


def test_the_page_is_private_loads_nothing_and_runs_nothing(configuration: Path, tmp_path: Path) -> None:
    path = tmp_path / "trace.html"
    shown = runner.invoke(app, ["trace", "show", "r1", "--html", str(path), "--config", str(configuration)])
    assert shown.exit_code == 0, shown.output
    text = path.read_text()
    parsed = _Parsed()
    parsed.feed(text)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert not {"script", "img", "iframe", "b"} & set(parsed.tags)
    assert parsed.tags.count("details") == len(json.loads(_json(configuration))["entries"])
    assert not re.findall(r"(?:src|href)=\"(?!data:,)|url\(|@import", text)


def _json(configuration: Path) -> str:
    return runner.invoke(app, ["trace", "show", "r1", "--json", "--config", str(configuration)]).output


COMMANDS = "\x1b]52;c;cm0gLXJm\x07\x9b2J\r\u202e"
"""Put something on the clipboard, clear the screen, go back to the line's beginning, turn the direction."""


def test_what_was_said_reaches_neither_terminal_nor_page_as_a_command(config: RunsConfig, tmp_path: Path) -> None:
    call = LOOKUP.model_copy(update={"arguments": {"entity": COMMANDS}})

    async def run() -> None:
        async with hybrid([call, COMMANDS], [], records=config) as agents:
            await agents.run(COMMANDS, strategy="device", idempotency_key=f"r1{COMMANDS}")

    anyio.run(run)
    path, page = tmp_path / "nearfar.toml", tmp_path / "page.html"
    path.write_text(f'[near]\nmodel = "near"\n[runs]\nfolder = "{config.folder}"\n')
    for asked in (["list"], ["show", f"r1{COMMANDS}", "--html", str(page)]):
        output = runner.invoke(app, ["trace", *asked, "--config", str(path)]).output
        assert "]52;c;" in output
        assert not set("\x1b\x07\x9b\u202e") & set(output + page.read_text() if page.exists() else output)


def test_the_page_is_not_written_through_a_link(configuration: Path, tmp_path: Path) -> None:
    other, link = tmp_path / "other", tmp_path / "link.html"
    other.write_text("something else")
    link.symlink_to(other)
    shown = runner.invoke(app, ["trace", "show", "r1", "--html", str(link), "--config", str(configuration)])
    assert (shown.exit_code, other.read_text()) == (2, "something else")


def test_blame_asks_who_knows_better(configuration: Path) -> None:
    shown = runner.invoke(app, ["trace", "blame", "r1", "--json", "--config", str(configuration)])
    assert (shown.exit_code, json.loads(shown.output)["error"]["type"]) == (2, "ConfigError")


def test_blame_names_the_agent_and_the_step(configuration: Path, config: RunsConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    async def fail() -> None:
        async with hybrid([LOOKUP, "Tomas Berg"], [], records=config) as agents:
            await agents.run("Who leads Orbix?", strategy="device", idempotency_key="bad")

    anyio.run(fail)
    monkeypatch.setattr("nearfar.orchestrator.cli.runs.open_hybrid", lambda *_: hybrid([], []))
    asked = ["trace", "blame", "bad", "--reference", "r1", "--expected", "Mira Falk", "--config", str(configuration)]
    found = json.loads(runner.invoke(app, [*asked, "--json"]).output)
    assert (found["decisive"]["step"], found["decisive"]["agent"], found["replays"], found["is_certain"]) == (2, "near", 1, True)
    assert "Step 2, near (near), failed run bad." in runner.invoke(app, asked).output


@pytest.mark.parametrize(("told", "outcome", "because"), [([], "unknown", "no live agent can be asked"), (["--ask-far"], "success", "")])
def test_a_far_agent_is_asked_anew_only_where_the_user_says_so(
    configuration: Path, config: RunsConfig, monkeypatch: pytest.MonkeyPatch, told: list[str], outcome: str, because: str
) -> None:
    wrong = LOOKUP.model_copy(update={"arguments": {"entity": "Halcyon"}})

    async def fail() -> None:
        async with hybrid([], [wrong, "Tomas Berg"], records=config) as agents:
            await agents.run("Who leads Orbix?", strategy="cloud", idempotency_key="bad")

    anyio.run(fail)
    monkeypatch.setattr("nearfar.orchestrator.cli.runs.open_hybrid", lambda *_: hybrid([], ["Mira Falk"]))
    asked = ["trace", "blame", "bad", "--reference", "r1", "--json", "--config", str(configuration), *told]
    first = json.loads(runner.invoke(app, asked).output)["trials"][0]
    assert (first["step"], first["outcome"]) == (1, outcome)
    assert because in first["because"]


def test_a_run_that_answers_right_and_does_something_else_has_failed(
    configuration: Path, config: RunsConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    @tool
    async def note(text: str) -> str:
        """Keep a note."""
        return "noted"

    async def run(name: str, text: str) -> None:
        call = ToolCall(id="1", name="note", arguments={"text": text})
        async with hybrid([call, "done"], [], records=config) as agents:
            await agents.run("Note that Orbix moves.", strategy="device", idempotency_key=name, tools=[note])

    anyio.run(run, "good", "Orbix moves")
    anyio.run(run, "bad", "Orbix stays")
    monkeypatch.setattr("nearfar.orchestrator.cli.runs.open_hybrid", lambda *_: hybrid(["done"], []))
    asked = ["trace", "blame", "bad", "--reference", "good", "--json", "--config", str(configuration)]
    assert json.loads(runner.invoke(app, asked).output)["decisive"]["step"] == 1
