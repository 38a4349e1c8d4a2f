"""`nearfar init`, `nearfar config` and `nearfar keys`: a first nearfar.toml, the configuration in force, and keys in the keyring."""

import asyncio
import getpass
import json
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any, Final, TypeVar

import typer
from rich.text import Text

from ...protocols import ConfigError, Sensitivity
from ...protocols.secrets import StoredKey
from ...protocols.system import creating, hint_for
from ..compose import EMBEDDED, anchored_model, far_handle, find_servers, how_to_set, model_store, parse_far, parse_near
from ..compose.config import Config, holds_secret, named_variables, parse_config, provider_keys, usual_variable
from ..task.policy import PRESETS, Preset
from ..util.settings import KeyPath, as_choice, key_lines
from . import options
from .running import Line, Note, count_text, notes, report_errors, show, show_error, table
from .selection import chosen_config

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
_VARIABLE: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}")
_LONGEST: Final = 100_000
"""Most characters that are read as a key."""

Variable = Annotated[str, typer.Argument(metavar="NAME", help="Name of the variable, such as ANTHROPIC_API_KEY.")]

app = typer.Typer(no_args_is_help=True)
keys_app = typer.Typer(no_args_is_help=True)


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
    return model if os.path.realpath(file.parent) == os.path.realpath(here) else anchored_model(model, here)


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
        with creating(path) as fresh:  # half a file would be in the way of the next try
            fresh.write_text(text, encoding="utf-8")
    except FileExistsError:
        raise ConfigError(f"{path} exists already", hint="edit it, or name another file") from None
    except OSError as error:
        hint = hint_for(error, "check the folder and its permissions")
        raise ConfigError(f"{path} cannot be written: {error.strerror}", hint=hint) from error


def _end_lines(path: Path, answers: Answers) -> Iterator[Line]:
    yield f"wrote {path}: near {answers.near}, far {answers.far}, preset {answers.preset}, {answers.sensitivity}"
    variable = usual_variable(answers.far.partition(":")[0])
    if variable is not None and not provider_keys()[variable]():
        yield Note(f"the far model needs its key: {how_to_set(variable)}", "yellow")
    yield Note("`nearfar doctor` says what is missing, `nearfar policy check` what is strange")


@keys_app.command("set")
def set_key(name: Variable, as_json: options.AsJson = False) -> None:
    """Keep a key in the keyring. It is asked for without echo; without a terminal it is read from standard input."""
    with report_errors(as_json=as_json):
        stored = _stored(name)
        stored.keep(_read_key(stored.variable))
        lines: list[Line] = [f"{stored.variable} is in the keyring"]
        if stored.place == "environment":
            lines.append(Note(f"the environment sets {stored.variable}, too, and is read first", "yellow"))
        show({"name": stored.variable, "place": stored.place}, lines, as_json=as_json)


@keys_app.command("list")
def list_keys(
    names: Annotated[list[str] | None, typer.Argument(metavar="[NAME]...", help="Further variables to look for.")] = None,
    config: options.Config = None,
    as_json: options.AsJson = False,
) -> None:
    """Show which keys are set, and where: those of the known providers and those that the configuration names."""
    with report_errors(as_json=as_json):
        wanted = dict.fromkeys([*provider_keys(), *_named(config), *(_stored(name).variable for name in names or ())])
        found = [(name, place_text(name)) for name in wanted]
        show({"keys": [{"name": name, "place": place} for name, place in found]}, _key_lines(found), as_json=as_json)


@keys_app.command("remove")
def remove_key(name: Variable, as_json: options.AsJson = False) -> None:
    """Remove a key from the keyring."""
    with report_errors(as_json=as_json):
        stored = _stored(name)
        stored.remove()
        lines: list[Line] = [f"{stored.variable} is no longer in the keyring"]
        if stored.place == "environment":
            lines.append(Note(f"the environment still sets {stored.variable}", "yellow"))
        show({"name": stored.variable, "place": stored.place or None}, lines, as_json=as_json)


def place_text(variable: str) -> str | None:
    """Return the place of a secret, or why the keyring cannot be read; None: it is not set."""
    try:
        return StoredKey(variable).place or None
    except ConfigError as error:
        return f"unknown: {error.message}"


def _named(path: Path | None) -> Iterator[str]:
    yield from named_variables(options.read_config(path) or Config()).values()


def _key_lines(found: list[tuple[str, str | None]]) -> Iterator[Line]:
    yield table(("name", "set in"), ((name, place or "not set") for name, place in found))
    yield Note("nearfar keys set NAME keeps a key in the keyring")


def _stored(name: str) -> StoredKey:
    """Return the key of a variable. The error does not repeat the name: it may be the key itself."""
    if not _VARIABLE.fullmatch(name) or holds_secret(name):
        raise ConfigError("this is no name of a variable", hint="first the name, such as ANTHROPIC_API_KEY; the key itself is asked for")
    return StoredKey(name)


def _read_key(name: str) -> str:
    if sys.stdin.isatty():
        try:
            return getpass.getpass(f"{name}: ").strip()
        except EOFError:
            raise KeyboardInterrupt from None
    text = sys.stdin.read(_LONGEST).strip()
    if not text:
        raise ConfigError("standard input holds no key", hint=f"at a terminal it is asked for; in a script: ... | nearfar keys set {name}")
    return text


_SHIPPED: Final = "shipped"
_DEFAULT: Final = "default"


@dataclass(frozen=True, slots=True)
class EffectiveValue:
    """The value of one key, and its source."""

    key: str
    """The key with its sections: `policy.limits.day.dollars`."""
    value: Any
    source: str
    """`FILE, line N`, `preset NAME`, `default`, or `shipped` for the models that run where no file is."""
    secret: str | None = None
    """For a key that names a variable: `environment`, `keyring` or `not set`."""


@app.callback()
def config() -> None:
    """Show the configuration that is in force."""


@app.command("show")
def show_config(config: options.Config = None, as_json: options.AsJson = False) -> None:
    """Print every key with its value and where that comes from: a line of the file, the preset, or the default. Secrets are not shown."""
    with report_errors(as_json=as_json):
        loaded = chosen_config(options.AgentChoice(config, None, None))
        path = options.config_file(config)
        values = effective_values(loaded, path)
        data = {"file": None if path is None else str(path), "keys": [asdict(value) for value in values]}
        show(data, _lines(values, path), as_json=as_json)


def effective_values(config: Config, path: Path | None) -> list[EffectiveValue]:
    """Return the value of each key, and its source. `path` is the file that `config` was read from."""
    lines = {} if path is None else key_lines(path.read_text(encoding="utf-8-sig"))
    preset = dict(_leaves(PRESETS[config.policy.preset], ("policy",)))
    usual = dict(_leaves(Config().model_dump(mode="json"), ()))
    variables = named_variables(config)

    def source(key: KeyPath, value: object) -> str:
        if key in lines:
            return f"{path}, line {lines[key]}"
        if key in preset:
            return f"preset {config.policy.preset}"
        return _SHIPPED if path is None and value != usual.get(key) else _DEFAULT

    def describe(key: KeyPath, value: object) -> EffectiveValue:
        name = ".".join(key)
        variable = variables.get(name)
        secret = None if variable is None else place_text(variable) or "not set"
        return EffectiveValue(name, value if variable is None else variable, source(key, value), secret)

    return [describe(key, value) for key, value in _leaves(config.model_dump(mode="json"), ())]


def _leaves(section: Mapping[str, Any], above: KeyPath) -> Iterator[tuple[KeyPath, Any]]:
    """Yield each key that is no section, with its path."""
    for name, value in section.items():
        if isinstance(value, Mapping) and value:
            yield from _leaves(value, (*above, name))
        else:
            yield (*above, name), value


def _lines(values: Sequence[EffectiveValue], path: Path | None) -> Iterator[Line]:
    for value in values:
        style = "dim" if value.source == _DEFAULT else ""
        yield Text.assemble((f"{value.key} = {_value_text(value)}", style), (f"  # {value.source}", "dim"))
    set_here = sum(value.source not in (_DEFAULT, _SHIPPED) for value in values)
    where = f"{path}" if path is not None else "no nearfar.toml in this folder; nearfar init writes one"
    yield Note(f"{where}; {count_text(len(values), 'key')}, {set_here} set by the file or its preset")


def _value_text(value: EffectiveValue) -> str:
    shown = "not set" if value.value is None else json.dumps(value.value, ensure_ascii=False)
    if value.secret is None:
        return shown
    return f"{shown} ({f'set in the {value.secret}' if value.secret in ('environment', 'keyring') else value.secret})"
