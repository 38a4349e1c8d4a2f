"""`nearfar init`: find the models and keys of this machine, ask at most five questions, and write a first nearfar.toml."""

import asyncio
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Final, TypeVar

import typer
from rich.text import Text

from ...protocols import ConfigError, Sensitivity
from ..compose.agents import (
    EMBEDDED,
    anchored_model,
    far_handle,
    find_servers,
    how_to_set,
    model_store,
    parse_far,
    parse_near,
)
from ..compose.config import parse_config, provider_keys, usual_variable
from ..task.policy import Preset
from ..util.arguments import as_choice
from . import options
from .running import Line, Note, notes, report_errors, show, show_error

Answer = TypeVar("Answer")

NONE: Final = "none"
"""The answer that leaves a side out."""
USUAL_MODELS: Final = {"anthropic": "claude-sonnet-5-5", "openai": "gpt-6.1-terra", "gemini": "gemini-3.8-flash"}
"""The model that is proposed for each provider."""
_DAILY_DOLLARS: Final = 5.0
"""The proposed limit of a day; the preset `cheapest` has one of its own."""
_UNLIMITED: Final = 0.0
_FILE: Final = """\
# The keys to begin with. docs/configuration.md describes all others, under "Advanced"; `nearfar policy schema` lists them,
# and `nearfar config show` says what is in force.
"""
_NEAR: Final = """
[near]  # on this device: a GGUF file, a folder with an ONNX model, a name of `nearfar models list`, or a server that runs here
{keys}
"""
_FAR: Final = """
[far]
provider = {provider}  # "openai", "anthropic" or "gemini"; "gateway" with an address; "llama" for another model of this machine
{keys}
"""
_POLICY: Final = """
[policy]
preset = {preset}  # "private", "balanced" or "cheapest"
sensitivity = {sensitivity}  # of tasks that do not say; "public" lets their text leave this device
"""
_DAY: Final = """
[policy.limits.day]
dollars = {dollars}  # calls of far models are refused when a day has cost this much
"""

app = typer.Typer()


@dataclass(frozen=True, slots=True)
class Choice:
    """A model that a question proposes."""

    name: str
    """The text that `--near` or `--far` takes."""
    about: str


@dataclass(frozen=True, slots=True)
class Answers:
    """The values for the file, as options of the command line name them."""

    near: str
    far: str
    preset: Preset
    sensitivity: Sensitivity
    daily_dollars: float
    """0: no limit, or the preset's."""


@app.command()
def init(
    file: Annotated[Path, typer.Argument(help="The file to write, or its folder.")] = options.DEFAULT_CONFIG,
    near: Annotated[str | None, typer.Option(help="Model on this device, as `nearfar run --near` takes it, or none.")] = None,
    far: Annotated[str | None, typer.Option(help="Model in the cloud, as `nearfar run --far` takes it, or none.")] = None,
    preset: Annotated[str | None, typer.Option(help="Defaults of the policy: private, balanced or cheapest.")] = None,
    sensitivity: Annotated[str | None, typer.Option(help="Of tasks that do not say: private or public.")] = None,
    daily_dollars: Annotated[float | None, typer.Option(min=0, help="Most that far models may cost a day. 0: no limit.")] = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Ask nothing: take what is found, and defaults.")] = False,
    as_json: options.AsJson = False,
) -> None:
    """Write a first nearfar.toml with the models and keys that this machine has. A file that exists is not changed.

    At a terminal and without options, it asks five questions. Ctrl-C and Ctrl-D write nothing.
    """
    with report_errors(as_json=as_json):
        path = file / options.DEFAULT_CONFIG if file.is_dir() else file
        if path.exists():
            raise ConfigError(f"{path} exists already", hint="edit it, or name another file")
        if path.suffix != ".toml":
            raise ConfigError(f"there is no folder {path}", hint="make it first, or name a file that ends in .toml")
        given = (near, far, preset, sensitivity, daily_dollars)
        asks = not (yes or as_json or any(each is not None for each in given)) and sys.stdin.isatty() and sys.stderr.isatty()
        answers = _collect(_ask if asks else _propose, *given)
        text = _text(path, answers)
        parse_config(text, str(path))
        _write(path, text)
        show({"config": str(path), **asdict(answers)}, _end_lines(path, answers), as_json=as_json)


def _collect(
    decide: "Decide", near: str | None, far: str | None, preset: str | None, sensitivity: str | None, daily_dollars: float | None
) -> Answers:
    """Return what was given and, for the rest, what `decide` makes of the proposals."""
    near = near or decide("The model on this device", near_choices(), _usable_near)
    far = far or decide("The model in the cloud, for what that one cannot do", far_choices(near), _usable_far)
    if near == far == NONE:
        raise ConfigError("neither a near nor a far model is named", hint="name one of them")
    chosen = as_choice("--preset", preset or decide("Defaults of the policy", _PRESETS, _usable_preset), Preset)
    label = sensitivity or decide("May the text of a task leave this device if the task says nothing?", _SENSITIVITIES, _usable_label)
    amount = f"{daily_dollars}" if daily_dollars is not None else None
    amount = amount or decide("Most that far models may cost a day, in dollars", _dollar_choices(far, chosen), _usable_amount)
    return Answers(near, far, chosen, as_choice("--sensitivity", label, Sensitivity), _usable_amount(amount))


Decide = Callable[[str, Sequence[Choice], Callable[[str], object]], str]
"""Decides between choices, the proposed one first; the check of an answer raises `ConfigError`."""
_PRESETS: Final = (
    Choice(Preset.BALANCED, "each key's own default"),
    Choice(Preset.PRIVATE, "tasks stay here, also public ones in which something private is found; tool calls are asked about"),
    Choice(Preset.CHEAPEST, "the near model drafts, the far one is asked on doubt, for at most a dollar a day"),
)
_SENSITIVITIES: Final = (
    Choice(Sensitivity.PRIVATE, "no, only that of tasks that are declared public"),
    Choice(Sensitivity.PUBLIC, "yes, unless a task is declared private"),
)


def near_choices() -> list[Choice]:
    """Return the models on this device, the proposed one first: those of servers that run, stored ones, files here, the shipped one."""
    servers = [
        Choice(server.line(model), f"{server.label} serves it now")
        for server in asyncio.run(find_servers())
        for model in server.state.models
        if model.is_chat and not model.remote_host
    ]
    stored = [Choice(model.name, "in the store of `nearfar models`") for model in model_store().models() if not model.obstacle]
    files = [Choice(str(path), "a file of this folder") for path in sorted(Path().glob("*.gguf"))]
    shipped = Choice("near", "ships with nearfar: tiny, knows only the worlds of the demo")
    return [*servers, *stored, *files, shipped, Choice(NONE, "no model on this device")]


def far_choices(near: str) -> list[Choice]:
    """Return the models in the cloud, the proposed one first: those whose key is set, else none, or
    the demo's for the demo's near model."""
    with_key: list[Choice] = []
    without_key: list[Choice] = []
    for provider, model in USUAL_MODELS.items():
        variable = str(usual_variable(provider))
        is_set = provider_keys()[variable]()
        about = f"{variable} is set" if is_set else f"needs {variable}, which is not set"
        (with_key if is_set else without_key).append(Choice(f"{provider}:{model}", about))
    shipped = Choice("far", "ships with nearfar: tiny, offline, knows only the worlds of the demo")
    none = Choice(NONE, "everything stays on this device")
    offline = [shipped, none] if near in EMBEDDED else [none, shipped]
    return [*with_key, *offline, *without_key]


def _dollar_choices(far: str, preset: Preset) -> list[Choice]:
    """Return limits for a day; only "no limit" where no price is known, since calls of unknown price are refused under a limit."""
    unlimited = Choice(f"{_UNLIMITED:g}", "no limit")
    agent = None if far == NONE else far_handle(far)
    price = None if agent is None else agent.prices
    if price is None or price.output == 0:
        return [unlimited]
    if preset is Preset.CHEAPEST:
        return [Choice(f"{_UNLIMITED:g}", "the preset's dollar a day"), Choice(f"{_DAILY_DOLLARS:g}", "more")]
    return [Choice(f"{_DAILY_DOLLARS:g}", "then far models are refused until the next day"), unlimited]


def _propose(question: str, choices: Sequence[Choice], check: Callable[[str], object]) -> str:
    return choices[0].name


def _ask(question: str, choices: Sequence[Choice], check: Callable[[str], object]) -> str:
    """Ask at the terminal until the answer makes sense. A single choice needs no question. End of input ends the command."""
    if len(choices) == 1:
        return choices[0].name
    notes.print(Text(f"\n{question}", style="bold"))
    # An amount is no place in a list: "2" means two dollars.
    places = {} if choices[0].name.isdecimal() else {f"{place}": choice.name for place, choice in enumerate(choices, 1)}
    for place, choice in zip(places or [""] * len(choices), choices, strict=True):
        notes.print(Text.assemble(f"  {place}  {choice.name}", (f"  {choice.about}", "dim")), soft_wrap=True)
    asked = "a number, or your own answer" if places else "an amount"
    while True:
        try:
            said = notes.input(f"{asked} [{choices[0].name}]: ").strip()
        except EOFError:
            raise KeyboardInterrupt from None
        answer = places.get(said, said) or choices[0].name
        try:
            if places and answer.isdecimal():
                raise ConfigError(f"there is no choice {answer}", hint=f"write 1 to {len(places)}, or a name")
            check(answer)
        except ConfigError as error:
            show_error(error)
            continue
        return answer


def _usable_near(text: str) -> None:
    if text != NONE:
        parse_near(text)


def _usable_far(text: str) -> None:
    if text != NONE:
        parse_far(text)


def _usable_preset(text: str) -> Preset:
    return as_choice("the preset", text, Preset)


def _usable_label(text: str) -> Sensitivity:
    return as_choice("the sensitivity", text, Sensitivity)


def _usable_amount(text: str) -> float:
    try:
        amount = float(text)
    except ValueError:
        amount = -1.0
    if not 0 <= amount < float("inf"):
        raise ConfigError(f"{text!r} is no amount of dollars", hint="write a number, such as 5 or 0.50; 0: no limit")
    return amount


def _from(file: Path, model: str) -> str:
    """Return the model as the file has to name it, since relative paths in it start at its own folder."""
    here = Path.cwd()
    return model if file.parent.resolve() == here.resolve() else anchored_model(model, here)


def _text(file: Path, answers: Answers) -> str:
    parts = [_FILE]
    if answers.near != NONE:
        near = parse_near(answers.near).model_dump(mode="json", exclude_unset=True)
        if near.keys() == {"model"}:
            near["model"] = _from(file, near["model"])
        parts.append(_NEAR.format(keys="\n".join(f"{name} = {_quoted(value)}" for name, value in near.items() if value is not None)))
    if answers.far != NONE:
        agent = parse_far(answers.far).model_dump(exclude_unset=True)
        if agent["provider"] == "llama":
            agent["model"] = _from(file, agent["model"])
        keys = "\n".join(f"{name} = {_quoted(value)}" for name, value in agent.items() if name != "provider")
        parts.append(_FAR.format(provider=_quoted(agent["provider"]), keys=keys))
    parts.append(_POLICY.format(preset=_quoted(answers.preset), sensitivity=_quoted(answers.sensitivity)))
    if answers.daily_dollars:
        parts.append(_DAY.format(dollars=answers.daily_dollars))
    return "".join(parts)


def _quoted(text: object) -> str:
    return json.dumps(str(text), ensure_ascii=False)


def _write(path: Path, text: str) -> None:
    try:
        with path.open("x", encoding="utf-8") as opened:
            opened.write(text)
    except FileExistsError:
        raise ConfigError(f"{path} exists already", hint="edit it, or name another file") from None
    except OSError as error:
        raise ConfigError(f"{path} cannot be written: {error.strerror}", hint="check the folder and its permissions") from error


def _end_lines(path: Path, answers: Answers) -> Iterator[Line]:
    yield f"wrote {path}: near {answers.near}, far {answers.far}, preset {answers.preset}, {answers.sensitivity}"
    variable = usual_variable(answers.far.partition(":")[0])
    if variable is not None and not provider_keys()[variable]():
        yield Note(f"the far model needs its key: {how_to_set(variable)}", "yellow")
    yield Note("`nearfar doctor` says what is missing, `nearfar policy check` what is strange")
