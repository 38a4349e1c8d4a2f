"""The page of the policy: edit the file, see what is wrong with it and what it changes, and only then save it."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

from ...protocols import ConfigError, NearfarError, Sensitivity, Side
from ..compose.config import Config
from ..compose.policy_file import config_findings, config_with_policy, read_text, save_policy
from ..routing.eligibility import PolicyFinding
from ..task.decisions import FIGURES, RouteDecision
from ..util.runtime import in_thread
from .html import Html, field, join, table, tag, text
from .policy_change import simulated_change
from .view import ROOT, Console, Page, PageContent, View, failure

_LONGEST: Final = 200_000
"""Characters of a file that the page edits."""


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
        field(file.name, editor),
        tag("div", checked, id="checked", role="status"),
        tag("div", _button("check", "Check"), _button("simulate", "Simulate the change"), _button("save", "Save"), class_="actions"),
        tag("p", "Simulating replays recorded tasks, and takes up to a minute.", class_="note"),
        tag("h2", "Explain a prompt under this text"),
        field("Prompt", prompt),
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
