"""Evidence on answers that stand in prose: how much of it is left when they have to be found first.

The recorded answers are wrapped into the templates of `prose_templates`, each model's into another one. The figures of the templates that
the extraction was developed on, and of those held out, stand apart; the ratios are to the figures on the answers as recorded.
"""

import hashlib
import json
import re
from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path
from statistics import fmean
from typing import Any, Final

import numpy

from nearfar.orchestrator.routing.answers import Answer
from nearfar.orchestrator.routing.looks import DRAFT, PROMPT, Cost, Look, Signal, prompt_surface, second_opinion, text_form
from nearfar.orchestrator.routing.training import DraftExamples

from .evidence_answers import SETS, AnswerSet
from .evidence_measures import Row, apgr, gains_of, read_rows, scores_of
from .prose_templates import BROKEN_OFF, SUBJECTS, TRACED, UNITS, WORKED, is_held_out

_TEMPLATES: Final = {"crux": TRACED, "math": WORKED}
_INTEGER: Final = re.compile(r"-?\d{1,15}")
_RATIO: Final = re.compile(r"(-?)(\d+)/(\d+)")
_OPINION: Final = Cost(dollars=1e-4)


def figures(folder: Path, *, quick: bool) -> dict[str, Any]:
    """The share of the recovery that is left in prose, the lower one of both sets; and what stands behind it."""
    sets = [_set_figures(answer_set, folder) for answer_set in (SETS[1:] if quick else SETS)]
    found: dict[str, Any] = {name: value for figures in sets for name, value in figures.items()}
    names = [answer_set.name for answer_set in (SETS[1:] if quick else SETS)]
    for kind in ("developed", "held_out"):
        suffix = "" if kind == "developed" else "_held_out"
        found[f"prose_apgr{suffix}"] = min(found[f"prose_{name}_{kind}"]["of_apgr"] for name in names)
        found[f"prose_gain{suffix}"] = min(found[f"prose_{name}_{kind}"]["of_gain"] for name in names)
    return found


def _set_figures(answer_set: AnswerSet, folder: Path) -> dict[str, Any]:
    rows = read_rows(folder / answer_set.file)
    recorded = _Recorded(answer_set, rows)
    best = recorded.apgr(recorded.pairs)
    return {
        f"prose_{answer_set.name}_recorded": {"apgr": best, "agree": recorded.agreement(recorded.pairs)},
        **{f"prose_{answer_set.name}_{kind}": recorded.prose(kind == "held_out", best) for kind in ("developed", "held_out")},
    }


class _Recorded:
    """The answers of a set's usual pair of models, and how they fare when they are written in other words."""

    def __init__(self, answer_set: AnswerSet, rows: Sequence[Row]) -> None:
        self.pairs = [[row["outcomes"][model]["answer"] for model in answer_set.usual] for row in rows]
        self._set, self._rows = answer_set, rows

    def prose(self, is_late: bool, recorded_apgr: float) -> dict[str, float]:
        """The figures of one part of the templates."""
        all_templates = _TEMPLATES[self._set.name]
        templates = [template for number, template in enumerate(all_templates) if is_held_out(number) == is_late]
        texts = [
            [_written(row, number, answer, _template(row, number, templates)) for number, answer in enumerate(pair)]
            for row, pair in zip(self._rows, self.pairs, strict=True)
        ]
        reached = self.apgr(texts)
        return {
            "apgr": reached,
            "of_apgr": reached / recorded_apgr,
            "of_gain": (reached - 0.5) / (recorded_apgr - 0.5),
            "agree": self.agreement(texts),
            "agree_as_texts": fmean(Answer.of_whole(first).agrees(Answer.of_whole(second)) for first, second in texts),
            "found": self._found(texts),
        }

    def apgr(self, texts: Sequence[Sequence[str | None]]) -> float:
        """APGR of the evidence that the texts give."""
        near, far = (scores_of(self._rows, model) for model in (self._set.usual[0], self._set.far))
        looks = [Look(name=PROMPT), Look(name=DRAFT), Look(name=self._set.usual[1], cost=_OPINION)]
        findings = [self._findings(row, pair) for row, pair in zip(self._rows, texts, strict=True)]
        examples = DraftExamples(self._set.usual[0], self._set.far, looks, findings, near, far)
        return apgr(gains_of(examples), near, far)

    def agreement(self, texts: Sequence[Sequence[str | None]]) -> float:
        """The share of tasks on which both models agree."""
        answers = [[Answer.of_text(text, prompt=row["prompt"]) for text in pair] for row, pair in zip(self._rows, texts, strict=True)]
        return fmean(first.agrees(second) for first, second in answers)

    def _findings(self, row: Row, pair: Sequence[str | None]) -> dict[str, Signal]:
        lengths = [row["outcomes"][model]["output_chars"] for model in self._set.usual]
        forms = [text_form(text, row["prompt"], output_characters=length) for text, length in zip(pair, lengths, strict=True)]
        draft, opinion = (form.answer or Answer(()) for form in forms)
        opinion_look = second_opinion(draft, opinion, further=forms[1].measures)
        return {PROMPT: prompt_surface(row["prompt"]), DRAFT: forms[0], self._set.usual[1]: opinion_look}

    def _found(self, texts: Sequence[Sequence[str]]) -> float:
        """The share of texts with an answer in which the recorded one is found."""
        rows = zip(self._rows, self.pairs, texts, strict=True)
        both = [(row["prompt"], answer, text) for row, pair, wrapped in rows for answer, text in zip(pair, wrapped, strict=True)]
        return fmean(
            Answer.of_whole(answer).agrees(Answer.of_text(text, prompt=prompt)) for prompt, answer, text in both if (answer or "").strip()
        )


def _template(row: Row, number: int, templates: Sequence[str]) -> str:
    """Choose a model's template for a task. Two models never have the same one."""
    random = _chance(row)
    first, step = int(random.integers(len(templates))), 1 + int(random.integers(len(templates) - 1))
    return templates[(first + number * step) % len(templates)]


def _chance(row: Row) -> numpy.random.Generator:
    return numpy.random.default_rng(int.from_bytes(hashlib.sha256(str(row["id"]).encode()).digest()[:8], "big"))


def _written(row: Row, number: int, answer: str | None, template: str) -> str:
    """Write the answer of the model of this number into prose. The task has the same subject and unit for all models."""
    random = _chance(row)
    subject, unit = SUBJECTS[random.integers(len(SUBJECTS))], UNITS[random.integers(len(UNITS))]
    astray = numpy.random.default_rng([number, int(random.integers(2**31))]).integers(2, 400, 4)
    if not (answer or "").strip():
        template = BROKEN_OFF[int(astray[0]) % len(BROKEN_OFF)]
    plain = (answer or "").strip()
    words = {
        **{f"<{name}>": str(value) for name, value in zip("abcd", astray, strict=True)},
        "<subject>": subject,
        "<answer>": plain,
        "<json>": json.dumps(plain),
        "<grouped>": f"{int(plain):,}" if _INTEGER.fullmatch(plain) else plain,
        "<decimal>": f"{plain}.00" if _INTEGER.fullmatch(plain) else plain,
        "<latex>": _latex(plain),
        "<long>": f"{plain} {unit[1]}" if _is_number(plain) else plain,
        "<short>": f"{plain} {unit[0]}" if _is_number(plain) else plain,
    }
    return re.sub("<[a-z]+>", lambda found: words.get(found[0], found[0]), template)


def _is_number(text: str) -> bool:
    try:
        Fraction(text)
    except (ValueError, ZeroDivisionError):  # it is an expression, or no number at all
        return False
    return True


def _latex(plain: str) -> str:
    ratio = _RATIO.fullmatch(plain)
    if ratio is not None:
        return rf"{ratio[1]}\frac{{{ratio[2]}}}{{{ratio[3]}}}"
    return f"{int(plain):,}".replace(",", "{,}") if _INTEGER.fullmatch(plain) else plain
