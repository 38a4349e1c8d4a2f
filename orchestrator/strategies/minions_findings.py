"""The messages between the far and the near side of `minions`: jobs, findings and assessments, read from replies and checked."""

import unicodedata
from collections.abc import Mapping, Sequence

from pydantic import TypeAdapter

from ...protocols import InvalidOutput, JsonSchema
from ...protocols.messages import Value
from ...protocols.validation import parse_output
from .json_replies import read_json_reply
from .minions_prompts import ASSESSMENT_SCHEMA, FINDING_SCHEMA, JOBS_SCHEMA, Job

_JOBS_OF_REPLY = TypeAdapter(tuple[Job, ...])
_ABSTENTIONS = frozenset({"", "none", "null", "n/a"})
"""How models that should have answered null write it."""
_QUOTES = "\"'“”‘’«» "


class Finding(Value):
    """The answer of a small model to one job on one chunk."""

    explanation: str
    citation: str
    """Words of the chunk."""
    answer: str


class Assessment(Value):
    """The far side's decision after a round: an answer, or jobs for another round."""

    answer: str | None
    scratchpad: str
    jobs: tuple[Job, ...]


def read_jobs(reply: str) -> tuple[Job, ...]:
    """Return the jobs of the first round. Raises `InvalidOutput`, whose message tells the model what to mend."""
    value = read_json_reply(reply, JOBS_SCHEMA)
    jobs = _jobs(value)
    if not jobs:
        raise InvalidOutput("it holds no jobs")
    return jobs


def read_assessment(reply: str, *, is_last: bool, output_schema: JsonSchema | None) -> Assessment:
    """Return the answer, which is valid against `output_schema` where there is one, or the jobs of another round.

    Raises `InvalidOutput` for anything else, and for more jobs where this was the last round.
    """
    assessment = Assessment.model_validate(read_json_reply(reply, ASSESSMENT_SCHEMA))
    assessment = assessment.model_copy(update={"jobs": _asked(assessment.jobs)})
    if assessment.answer is None or not assessment.answer.strip():
        if is_last:
            raise InvalidOutput("no rounds are left, and it holds no answer", hint="raise minions.maximum_rounds, or ask a stronger model")
        if not assessment.jobs:
            raise InvalidOutput("it holds neither an answer nor jobs")
        return assessment.model_copy(update={"answer": None})
    if output_schema is not None:
        parse_output(assessment.answer, output_schema)
    return assessment


def read_finding(reply: str, chunk: str) -> Finding | None:
    """Read a finding from a reply. Return None if the model abstained or cites words that the chunk does not hold. Raises
    `InvalidOutput`."""
    value = read_json_reply(reply, FINDING_SCHEMA)
    assert isinstance(value, dict), "the schema asks for an object"
    explanation, citation, answer = (str(value[name] or "").strip() for name in ("explanation", "citation", "answer"))
    if answer.casefold() in _ABSTENTIONS or not occurs(citation, chunk):
        return None
    return Finding(explanation=explanation, citation=citation, answer=answer)


def occurs(citation: str, chunk: str) -> bool:
    """Return whether a chunk holds a citation. Case, spacing, Unicode form and quotation marks around the citation are ignored."""
    cited = _plain(citation.strip(_QUOTES))
    return bool(cited) and cited in _plain(chunk)


def show(jobs: Sequence[Job], findings: Mapping[tuple[int, int], Finding], *, characters: int) -> str:
    """Return the findings by job, then by chunk, in at most about `characters`, evenly among the jobs; what is left out is counted.

    Args:
        findings: by the indices of job and chunk.
    """
    found = {index: [(chunk, findings[index, chunk]) for job, chunk in sorted(findings) if job == index] for index in range(len(jobs))}
    lines: list[str] = []
    for index, job in enumerate(jobs):
        left = characters - sum(map(len, lines))
        lines.append(f"Job {index + 1}: {job.instruction}")
        lines.extend(_shown(found[index], left // (len(jobs) - index)))
    return "\n".join(lines)


def _shown(found: Sequence[tuple[int, Finding]], characters: int) -> list[str]:
    if not found:
        return ["- nothing was found"]
    lines: list[str] = []
    for chunk, finding in found:
        line = f'- chunk {chunk + 1}: {finding.answer} ("{finding.citation}"; {finding.explanation})'
        if sum(map(len, lines)) + len(line) > characters:
            return [*lines, f"- {len(found) - len(lines)} more are left out"]
        lines.append(line)
    return lines


def _jobs(value: object) -> tuple[Job, ...]:
    assert isinstance(value, dict), "the schema asks for an object"
    return _asked(_JOBS_OF_REPLY.validate_python(value["jobs"]))


def _asked(jobs: Sequence[Job]) -> tuple[Job, ...]:
    """Return the jobs without empty and repeated ones."""
    return tuple(dict.fromkeys(job for job in jobs if job.instruction.strip()))


def _plain(text: str) -> str:
    return " ".join(unicodedata.normalize("NFKC", text).casefold().split())
