"""The `nearfar models` group: the models of this device. As in the package itself, each command loads what it needs when it runs."""

from pathlib import Path
from typing import Annotated

import typer

from . import options

Name = Annotated[str | None, typer.Option(help="What to call it; by default what its file is called.")]
Sha256 = Annotated[str | None, typer.Option("--sha256", help="Checksum that the file must have.")]

models = typer.Typer(help="The models of this device: list them, fetch them, check them, and see which fit.", no_args_is_help=True)


@models.command("list")
def list_models(as_json: options.AsJson = False) -> None:
    """List the models on this device by the names that a configuration may use."""
    from .models_store import list_models as run

    run(as_json=as_json)


@models.command("pull")
def pull_model(
    reference: Annotated[str, typer.Argument(help="hf:OWNER/REPOSITORY:QUANT, or :FILE.gguf.")],
    name: Name = None,
    revision: Annotated[str, typer.Option(help="Branch, tag or commit of the repository.")] = "main",
    sha256: Sha256 = None,
    as_json: options.AsJson = False,
) -> None:
    """Fetch a model from Hugging Face; a download that was interrupted goes on where it was."""
    from .models_store import pull_model as run

    run(reference, name=name, revision=revision, sha256=sha256, as_json=as_json)


@models.command("add")
def add_model(
    path: Annotated[Path, typer.Argument(help="A .gguf file, or a folder for onnxruntime-genai. It stays where it is.")],
    name: Name = None,
    sha256: Sha256 = None,
    as_json: options.AsJson = False,
) -> None:
    """Check a model that is on this device, and give it a name."""
    from .models_store import add_model as run

    run(path, name=name, sha256=sha256, as_json=as_json)


@models.command("verify")
def verify_models(
    names: Annotated[list[str] | None, typer.Argument(help="Models; all unless given.", show_default=False)] = None,
    as_json: options.AsJson = False,
) -> None:
    """Take the checksums once more; what fails goes to quarantine and is not loaded."""
    from .models_store import verify_models as run

    run(names or (), as_json=as_json)


@models.command("rm")
def remove_model(name: Annotated[str, typer.Argument(help="A model's name.")], as_json: options.AsJson = False) -> None:
    """Forget a model, and delete its files if they were fetched by `pull`."""
    from .models_store import remove_model as run

    run(name, as_json=as_json)


@models.command("fit")
def fit_models(
    model: Annotated[str | None, typer.Argument(help="A name, a .gguf file, or hf:OWNER/REPOSITORY; else all on this device.")] = None,
    context: Annotated[int | None, typer.Option(min=1, help="Tokens of one step, prompt and output together.")] = None,
    parallel: Annotated[int, typer.Option(min=1, max=64, help="Steps that are decoded side by side.")] = 4,
    as_json: options.AsJson = False,
) -> None:
    """Say how much memory models take with which context, and what fits."""
    from .models_fit import show_fits

    show_fits(model, context=context, parallel=parallel, as_json=as_json)


@models.command("bench")
def bench_model(
    model: Annotated[str, typer.Argument(help="A name of `nearfar models list`, or the path of a model.")] = "near",
    compute: Annotated[str, typer.Option(help="What to compute on: fastest, lowest_power, or a provider such as cpu or cuda.")] = "fastest",
    watts: Annotated[
        float | None, typer.Option(min=0.001, max=100_000, help="Power of this device while it computes, where nothing measures it.")
    ] = None,
    as_json: options.AsJson = False,
) -> None:
    """Measure how fast a model goes on this device, and at which power; the router goes by it."""
    from .models_bench import bench_model as run

    run(model, compute=compute, watts=watts, as_json=as_json)
