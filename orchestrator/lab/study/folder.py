"""The folder of a sweep: its runs, its report, and a note of the models that the runs were made with."""

import json
from pathlib import Path
from typing import Final

from ....protocols import ConfigError
from .study import Study, models_of

RUNS: Final = "runs.jsonl"
_NOTE: Final = "study.json"


def claim_folder(folder: Path, study: Study) -> Path:
    """Make the folder and note what is run there; the path of its runs.

    Raises `ConfigError` where its runs were made with other models: one report could not tell them apart.
    """
    folder.mkdir(parents=True, exist_ok=True)
    note = folder / _NOTE
    models = models_of(study)
    before = _models_before(note)
    if before and ("agents" in before) != ("agents" in models):
        problem = f"{folder} holds runs of {', '.join(before.values())}, and not of {', '.join(models.values())}"
        raise ConfigError(problem, hint="choose another folder: --out, or empty this one")
    for side, model in models.items():
        if before.get(side, model) != model:
            problem = f"{folder} holds runs of another {side} model: {before[side]}, not {model}"
            raise ConfigError(problem, hint="choose another folder: --out, or empty this one")
    labels = [configuration.label for configuration in study.configurations]
    described = {
        "models": {**before, **models},
        **study.model_dump(include={"worlds", "tasks", "seeds"}, mode="json"),
        "configurations": labels,
    }
    _write_at_once(note, json.dumps(described, indent=1, ensure_ascii=False) + "\n")
    return folder / RUNS


def _write_at_once(path: Path, text: str) -> None:
    """Replace a file atomically: it has the old text or the new one whenever the sweep is stopped."""
    fresh = path.with_suffix(".new")
    fresh.write_text(text, encoding="utf-8")
    fresh.replace(path)


def _models_before(note: Path) -> dict[str, str]:
    if not note.exists():
        return {}
    try:
        models = json.loads(note.read_text(encoding="utf-8"))["models"]
        return {str(side): str(model) for side, model in models.items()}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ConfigError(
            f"{note} is damaged: {error}", hint="delete it if all runs in this folder were made with the same models"
        ) from error
