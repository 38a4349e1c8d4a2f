"""`nearfar init`: write a first nearfar.toml."""

import json
from pathlib import Path
from typing import Annotated, Final

import typer

from ...protocols import ConfigError
from ..compose.agents import anchored_model, parse_far
from ..compose.config import parse_config
from ..task.policy import Preset
from ..util.arguments import as_choice
from . import options
from .printing import Note, show
from .running import report_errors

_FILE: Final = """\
# The five keys to begin with. docs/configuration.md describes all others, under "Advanced"; `nearfar policy schema` lists them.

[near]
model = {near}  # on this device: a GGUF file, a folder with an ONNX model, or a name of `nearfar models list`

[far]
provider = {provider}  # "openai", "anthropic" or "gemini"; "gateway" with an address; "llama" for another model of this machine
{far_key} = {far}

[policy]
preset = {preset}  # "private", "balanced" or "cheapest"
sensitivity = "private"  # of tasks that do not say; "public" lets their text leave this device
"""

app = typer.Typer()


@app.command()
def init(
    file: Annotated[Path, typer.Argument(help="The file to write.")] = options.DEFAULT_CONFIG,
    near: options.Near = "near",
    far: options.Far = "far",
    preset: Annotated[str, typer.Option(help="Defaults of the policy: private, balanced or cheapest.")] = Preset.BALANCED.value,
    as_json: options.AsJson = False,
) -> None:
    """Write a first nearfar.toml with five keys. A file that exists is not changed."""
    with report_errors(as_json=as_json):
        text = _text(file, near or "near", far or "far", as_choice("--preset", preset, Preset))
        parse_config(text, str(file))
        try:
            with file.open("x", encoding="utf-8") as opened:
                opened.write(text)
        except FileExistsError:
            raise ConfigError(f"{file} exists already", hint="edit it, or name another file") from None
        except OSError as error:
            raise ConfigError(f"{file} cannot be written: {error.strerror}", hint="check the folder and its permissions") from error
        advice = "`nearfar doctor` says what is missing, `nearfar policy check` what is strange"
        show({"config": str(file)}, [f"wrote {file}", Note(advice)], as_json=as_json)


def _from(file: Path, model: str) -> str:
    """Return the model as the file has to name it, since relative paths in it start at its own folder."""
    here = Path.cwd()
    return model if file.parent.resolve() == here.resolve() else anchored_model(model, here)


def _text(file: Path, near: str, far: str, preset: Preset) -> str:
    agent = parse_far(far).model_dump(exclude_unset=True)
    (far_key,) = agent.keys() - {"provider"}
    if agent["provider"] == "llama":
        agent["model"] = _from(file, agent["model"])
    values = {"near": _from(file, near), "provider": agent["provider"], "far": agent[far_key], "preset": preset}
    return _FILE.format(far_key=far_key, **{name: json.dumps(str(value), ensure_ascii=False) for name, value in values.items()})
