"""Command line: ``python -m train near|far|export|evaluate|enlarge``, run from the repository root."""

from __future__ import annotations

import argparse
import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from .trainer import Progress

RUNS: Final = Path(__file__).parent / "runs"
MODELS: Final = Path(__file__).parent.parent / "device" / "models"
_TOKENIZER: Final = RUNS / "tokenizer.json"


def main() -> None:
    """Parse the command line and run one command."""
    arguments = _parser().parse_args()
    arguments.run(arguments)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m train", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    for name in ("near", "far"):
        _add_training(commands.add_parser(name, help=f"train {name}, or continue training it"), name)
    export = commands.add_parser("export", help="write the newest checkpoint of a run as a GGUF")
    export.add_argument("model", choices=("near", "far"))
    export.add_argument("--checkpoint", type=Path)
    export.add_argument("--target", type=Path)
    export.set_defaults(run=_export)
    _add_evaluation(commands.add_parser("evaluate", help="measure the GGUFs in llama.cpp on unseen tasks"))
    enlarge = commands.add_parser("enlarge", help="write a bigger model with the same outputs")
    enlarge.add_argument("source", type=Path)
    enlarge.add_argument("target", type=Path)
    enlarge.add_argument("--parameters", type=int, default=115_000_000)
    enlarge.set_defaults(run=_enlarge)
    return parser


def _add_training(command: argparse.ArgumentParser, name: str) -> None:
    command.add_argument("--steps", type=int, help="length of training, if not the recipe's")
    command.add_argument("--decay", type=int, help="steps at the end over which the rate falls to zero")
    command.add_argument("--start", type=Path, help="checkpoint to branch from")
    command.add_argument("--folder", type=Path, default=RUNS / name)
    command.add_argument("--every", type=int, default=300, help="steps between checkpoints")
    command.set_defaults(run=_train)


def _add_evaluation(command: argparse.ArgumentParser) -> None:
    command.add_argument("--model", choices=("near", "far", "cascade"), default="cascade")
    command.add_argument("--near", type=Path, default=MODELS / "near.gguf")
    command.add_argument("--far", type=Path, default=MODELS / "far.gguf")
    command.add_argument("--count", type=int, default=400, help="number of tasks")
    command.add_argument("--seed", type=int, help="first world; by default that of the test")
    command.add_argument("--threshold", type=float, help="confidence from which near is trusted")
    command.add_argument("--choose", action="store_true", help="choose the threshold on the validation worlds")
    command.add_argument("--json", action="store_true")
    command.set_defaults(run=_evaluate)


def _train(arguments: argparse.Namespace) -> None:
    from .data import load_tokenizer, train_tokenizer
    from .recipes import RECIPES
    from .trainer import Trainer

    recipe = RECIPES[arguments.command]
    recipe = replace(recipe, steps=arguments.steps or recipe.steps, decay_steps=arguments.decay or recipe.decay_steps)
    if not _TOKENIZER.exists():
        train_tokenizer(_TOKENIZER, [*RECIPES["near"].mix, *RECIPES["far"].mix])
    trainer = Trainer(recipe, load_tokenizer(_TOKENIZER), arguments.folder)
    last = arguments.folder / "last.pt"
    start = last if last.exists() else arguments.start
    if start is not None:
        trainer.resume(start)
    trainer.run(every=arguments.every, report=_show)


def _show(progress: Progress) -> None:
    print(
        f"step {progress.step}/{progress.steps} loss {progress.loss:.4f} "
        f"{progress.tokens_per_second:.0f} tok/s eta {progress.seconds_left / 60:.1f} min",
        flush=True,
    )


def _export(arguments: argparse.Namespace) -> None:
    from .export import export

    checkpoint = arguments.checkpoint or RUNS / arguments.model / "last.pt"
    target = arguments.target or MODELS / f"{arguments.model}.gguf"
    export(checkpoint, _TOKENIZER, target, f"nearfar-{arguments.model}")
    print(f"{target.name}: {target.stat().st_size / 1e6:.2f} MB")


def _enlarge(arguments: argparse.Namespace) -> None:
    from .enlarge import enlarge

    enlarge(arguments.source, arguments.target, arguments.parameters)
    print(f"{arguments.target.name}: {arguments.target.stat().st_size / 1e6:.1f} MB")


def _evaluate(arguments: argparse.Namespace) -> None:
    from . import evaluate

    usual = evaluate.VALIDATION_SEED if arguments.choose else evaluate.TEST_SEED
    seed = usual if arguments.seed is None else arguments.seed
    paths = {"near": [arguments.near], "far": [arguments.far]}.get(arguments.model, [arguments.near, arguments.far])
    attempts = evaluate.run(paths, arguments.count, seed)
    report: dict[str, object] = {"model": arguments.model, "seed": seed, "tasks": arguments.count}
    if len(paths) == 1:
        report["accuracy"] = evaluate.by_hops([(one.task.hops, one.right) for one in attempts[0]])
    else:
        near, far = attempts
        threshold = evaluate.THRESHOLD if arguments.threshold is None else arguments.threshold
        chosen = evaluate.choose_threshold(near, far) if arguments.choose else threshold
        report |= evaluate.summary(near, far, chosen)
    if arguments.json:
        print(json.dumps(report, indent=2))
    else:
        _print_table(report)


def _print_table(report: dict[str, object]) -> None:
    for key, value in report.items():
        if isinstance(value, dict):
            print(f"{key}: " + "  ".join(f"{name} {number:.3f}" for name, number in value.items()))
        else:
            print(f"{key}: {value:.4g}" if isinstance(value, float) else f"{key}: {value}")


if __name__ == "__main__":
    main()
