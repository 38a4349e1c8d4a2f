"""The page of the policy: edit the file, see what is wrong with it and what it changes, and only then save it."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

import anyio
import anyio.to_process

from ...protocols import ConfigError, DeadlineExceeded, NearfarError, RateLimited, Sensitivity, Side
from ..compose.config import Config
from ..compose.policy_file import config_findings, config_with_policy, read_text, save_policy
from ..hybrid.hybrid import Hybrid
from ..lab.replay.simulation import compare_policies
from ..routing.eligibility import PolicyFinding
from ..task.decisions import FIGURES, RouteDecision
from ..task.policy import Policy
from ..util.runtime import in_thread
from .html import Html, Mark, form_field, join, scatter, table, tag, text
from .view import ROOT, Console, Page, PageContent, View, failure

if TYPE_CHECKING:
    from ..lab.replay.simulation import Served, Simulation
    from ..lab.statistics import IntervalEstimate

_PATIENCE: Final = 300.0
"""Seconds after which a simulation is given up."""
_simulating = anyio.CapacityLimiter(1)
"""Lets one simulation run at a time, which uses all processors."""
_LONGEST: Final = 200_000
"""Characters of a file that the page edits."""


async def simulated_change(hybrid: Hybrid, then: Policy) -> Html:
    """Return what the policy `then` does to recorded tasks, compared with the one in force.

    Raises `ConfigError` where nothing is recorded or packages are missing, `RateLimited` while another simulation runs, and
    `DeadlineExceeded`.
    """
    recorded = next((path for path in recordings(then) if path.exists()), None)
    if recorded is None:
        keys = "[policy.auto] outcomes names the runs of `nearfar sweep`, [policy.router] log keeps what Hybrid.report tells of answers"
        raise ConfigError("there are no recorded outcomes to replay", hint=keys)
    sides = {handle.name: handle.side for handle in hybrid.pool}
    return _change(*await _compared(recorded, sides, hybrid.policy, then), recorded)


def recordings(policy: Policy) -> Iterator[Path]:
    """Yield the files of recorded outcomes that a policy names: runs of a sweep, and the router's log."""
    yield from (path for path in (policy.auto.outcomes, policy.router.log) if path is not None)


async def _compared(recorded: Path, sides: Mapping[str, Side], now: Policy, then: Policy) -> "tuple[Simulation, Simulation]":
    """Replay in a process of its own, which ends if the browser leaves: it needs torch, and all processors for a while."""
    try:
        _simulating.acquire_nowait()
    except anyio.WouldBlock:
        raise RateLimited("another simulation is running", hint="wait for it", retry_after=30.0) from None
    try:
        with anyio.fail_after(_PATIENCE):
            first, second = await anyio.to_process.run_sync(compare_policies, recorded, sides, (now, then), cancellable=True)
    except TimeoutError:
        raise DeadlineExceeded(f"the simulation took longer than {_PATIENCE:.0f} s", hint="simulate on fewer tasks") from None
    finally:
        _simulating.release()
    return first, second


def _change(now: "Simulation", then: "Simulation", recorded: Path) -> Html:
    """Return what the change does to recorded tasks: where the policy stands on the front, before and after."""
    knows = now.policy.dollars is not None and then.policy.dollars is not None
    marks = [
        *(_mark(each, each.name, str(now.sides[each.name]), knows) for each in then.singles),
        _mark(now.policy, "now", "", knows),
        _mark(then.policy, "with this text", "here", knows),
    ]
    fronts = [[_point(each, knows) for each in found.front] for found in (then, now)]
    across = "dollars per task" if knows else "share of tasks that go far"
    title = f"{then.tasks:,} recorded tasks of {recorded.name}, replayed: up and left is better. Bars are 95 % intervals."
    drawn = scatter(title, marks, across=across, up="score", front=fronts[0], before=fronts[1])
    legend = (
        "The dashed line joins what the router reaches under other thresholds with this text, the dotted line with the policy in force."
    )
    ways = [("now", now.policy), ("with this text", then.policy), *((each.name, each) for each in then.singles), ("oracle", then.oracle)]
    rows = [(text(name), _share(way.far_share), _share(way.score), _dollars(way.dollars)) for name, way in ways]
    figures = table("Means per task, with 95 % intervals", ("served by", "far share", "score", "dollars"), rows)
    notes = [tag("li", text(note)) for note in _notes(now, then)]
    return join([tag("h2", "The change on recorded tasks"), drawn, tag("p", legend, class_="note"), figures, tag("ul", notes)])


def _notes(now: "Simulation", then: "Simulation") -> Iterator[str]:
    yield from then.warnings
    yield from (f"Now: {note}" for note in now.warnings if note not in then.warnings)
    yield from (f"With this text, {count:,} of them are refused: {reason}" for reason, count in then.refused.items())


def _mark(way: "Served", name: str, css: str, knows_dollars: bool) -> Mark:
    across = way.dollars if knows_dollars and way.dollars is not None else way.far_share
    return Mark(name, across.value, way.score.value, (across.low, across.high), (way.score.low, way.score.high), css)


def _point(way: "Served", knows_dollars: bool) -> tuple[float, float]:
    across = way.dollars if knows_dollars and way.dollars is not None else way.far_share
    return across.value, way.score.value


def _share(figure: "IntervalEstimate") -> str:
    return f"{figure.value:.1%} [{figure.low:.1%}, {figure.high:.1%}]"


def _dollars(figure: "IntervalEstimate | None") -> str:
    if figure is None:
        return "unknown"
    return f"{figure.value:.5f} [{figure.low:.5f}, {figure.high:.5f}]" if figure.high else "0"


@dataclass(frozen=True, slots=True)
class _Draft:
    """Content of the page's form."""

    text: str
    over: str
    """Names the content of the file that the text replaces."""
    prompt: str = ""
    is_public: bool = False

    @classmethod
    def of(cls, view: View) -> "_Draft":
        return cls(view.asked("text"), view.asked("over"), view.form.get("prompt", ""), view.form.get("public") == "yes")


async def _show(view: View) -> PageContent:
    file = view.console.file
    if file is None:
        return PageContent("Policy", tag("p", "The policy was not read from a file. ", _how_to_begin(), class_="empty"))
    content, over = await in_thread(read_text, file)
    if len(content) > _LONGEST:
        return PageContent("Policy", tag("p", f"{file} is too long for this page: edit it with an editor.", class_="empty"))
    told = _saved() if view.query.get("saved") else None
    return await _page(view, _Draft(content, over), above=told)


def _how_to_begin() -> Html:
    begin, serve = tag("code", "nearfar init"), tag("code", "nearfar serve console")
    return join(["To edit one here, make a file by ", begin, " and start ", serve, " without --strategy, --mode and --public."])


def _saved() -> Html:
    return tag("p", "Saved. Tasks that start now are served under this policy.", class_="problem fine", role="status")


async def _page(view: View, draft: _Draft, *, above: Html | None = None, below: Html | None = None) -> PageContent:
    assert view.console.file is not None, "without one, there is no form"
    checked = await in_thread(_checked, view.console, draft.text)
    policy = view.console.hybrid.policy
    force = f"In force: preset {policy.preset}, strategy {policy.strategy}, mode {policy.mode}, rules: {len(policy.rules)}."
    return PageContent(
        "Policy",
        join([above, tag("p", force, class_="lead"), _form(view, view.console.file, draft, checked), tag("div", below, id="found")]),
    )


def _form(view: View, file: Path, draft: _Draft, checked: Html) -> Html:
    # The first line end of a text area is left out by browsers.
    editor = tag(
        "textarea", Html("\n"), text(draft.text, len(draft.text)), name="text", class_="code", required=True, spellcheck="false", rows=24
    )
    prompt = tag("input", type="text", name="prompt", value=draft.prompt, placeholder="What is the capital of Chile?")
    public = tag("input", type="checkbox", name="public", value="yes", checked=draft.is_public)
    hidden = [tag("input", type="hidden", name=name, value=value) for name, value in (("csrf", view.session.csrf), ("over", draft.over))]
    return tag(
        "form",
        hidden,
        form_field(file.name, editor),
        tag("div", checked, id="checked", role="status"),
        tag("div", _button("check", "Check"), _button("simulate", "Simulate the change"), _button("save", "Save"), class_="actions"),
        tag("p", "Simulating replays recorded tasks, and takes up to a minute.", class_="note"),
        tag("h2", "Explain a prompt under this text"),
        form_field("Prompt", prompt),
        tag("label", public, tag("span", "It may leave this device"), class_="check"),
        tag("div", _button("explain", "Explain"), class_="actions"),
        method="post",
        action=f"{ROOT}/policy/check",
        data_preview="checked",
    )


def _button(action: str, name: str) -> Html:
    shows = "#found" if action in ("simulate", "explain") else ""
    return tag("button", name, type="submit", formaction=f"{ROOT}/policy/{action}{shows}", class_=None if action == "save" else "quiet")


def _checked(console: Console, content: str) -> Html:
    """Return what is wrong or strange about a text, with line and key."""
    try:
        config = _config(console, content)
    except ConfigError as error:
        return failure(error.message, error.hint)
    found = config_findings(config, _sides(console))
    if not found:
        return tag("p", "This text can be used.", class_="problem fine")
    return tag("div", tag("p", "This text can be used, but:"), tag("ul", list(_findings(found))), class_="problem doubt")


def _config(console: Console, content: str) -> Config:
    if console.file is None:
        raise ConfigError("the policy was not read from a file")
    return config_with_policy(console.file, content, _sides(console))


def _sides(console: Console) -> dict[str, Side]:
    return {handle.name: handle.side for handle in console.hybrid.pool}


def _findings(found: Sequence[PolicyFinding]) -> Iterator[Html]:
    for finding in found:
        yield tag("li", text(str(finding)))


async def _check(view: View) -> PageContent:
    return await _page(view, _Draft.of(view))


async def _explain(view: View) -> PageContent:
    draft = _Draft.of(view)
    config = await in_thread(_config, view.console, draft.text)
    if not draft.prompt.strip():
        return await _page(view, draft, below=failure("There is no prompt to explain.", "Write one above the button."))
    sensitivity = Sensitivity.PUBLIC if draft.is_public else Sensitivity.PRIVATE
    explain = partial(view.console.hybrid.explain_route, draft.prompt, policy=config.policy, sensitivity=sensitivity)
    try:
        found = _decision(await in_thread(explain))
    except NearfarError as error:
        found = failure(error.message, error.hint)
    return await _page(view, draft, below=found)


def _decision(decision: RouteDecision) -> Html:
    """Return which agents would serve a prompt, and what is expected of each."""
    head = " then ".join(decision.candidates) if decision.denied is None else f"denied: {decision.denied}"
    columns = [each.figures for each in decision.considered]
    rows = [(name, *map(text, row)) for name, *row in zip(FIGURES, *columns, strict=True) if any(row)]
    names = ("", *(f"{each.agent} ({each.side})" for each in decision.considered))
    reasons = tag("ul", [tag("li", text(reason)) for reason in decision.reasons])
    return join([tag("h2", "Who would serve it: ", text(head)), reasons, table("What is expected of each agent", names, rows)])


async def _simulate(view: View) -> PageContent:
    draft = _Draft.of(view)
    config = await in_thread(_config, view.console, draft.text)
    try:
        found = await simulated_change(view.console.hybrid, config.policy)
    except ConfigError as error:
        found = failure(error.message, error.hint)
    return await _page(view, draft, below=found)


async def _save(view: View) -> PageContent | str:
    draft = _Draft.of(view)
    if view.console.file is None:
        raise ConfigError("the policy was not read from a file")
    try:
        await in_thread(partial(save_policy, view.console.file, draft.text, _sides(view.console), over=draft.over))
    except NearfarError as error:
        return await _page(view, draft, above=failure(f"Not saved. {error.message}", error.hint))
    return "/policy?saved=1"


POLICY: Final = Page("/policy", "Policy", _show, {"check": _check, "explain": _explain, "simulate": _simulate, "save": _save})
