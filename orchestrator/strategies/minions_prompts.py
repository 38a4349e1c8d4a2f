"""Prompts of the minions strategy.

Instructions stand first and what grows stands last, so that a prefix cache serves the rounds of one task, and the jobs on one chunk.
"""

import json

from ...protocols import JsonSchema, Message
from ...protocols.messages import Value

WRITE_JOBS = (
    "You answer a task about a long text that you cannot see. Small models read it for you, chunk by chunk: each of your jobs is done on "
    "every chunk by itself, and you are shown what they find. Write simple jobs that ask for one thing each and can be done with a single "
    'chunk. Reply with JSON only: {"jobs": [{"instruction": "...", "advice": "..."}]}; advice may be empty.'
)
AGGREGATE_FINDINGS = (
    "You answer a task about a long text that you cannot see. Small models did jobs on it, chunk by chunk; below is what they found. "
    "They err: weigh the citations. If it is enough, reply with JSON only: "
    '{"answer": "...", "scratchpad": "", "jobs": []}. If not, and rounds are left, reply with JSON only: '
    '{"answer": null, "scratchpad": "what you know so far", "jobs": [{"instruction": "...", "advice": "..."}]}; '
    "of this round, only the scratchpad is shown to you again."
)
READ_CHUNK = (
    "Do the job with this part of a text. Reply with JSON only: "
    '{"explanation": "...", "citation": "...", "answer": "..."}. citation is copied word for word from the text. '
    "If the text does not say, answer and citation are null."
)

_JOBS: JsonSchema = {
    "type": "array",
    "items": {
        "type": "object",
        "properties": {"instruction": {"type": "string"}, "advice": {"type": "string"}},
        "required": ["instruction", "advice"],
        "additionalProperties": False,
    },
}
_TEXT_OR_NULL: JsonSchema = {"type": ["string", "null"]}

JOBS_SCHEMA: JsonSchema = {"type": "object", "properties": {"jobs": _JOBS}, "required": ["jobs"], "additionalProperties": False}
"""The reply to `jobs_request`."""
ASSESSMENT_SCHEMA: JsonSchema = {
    "type": "object",
    "properties": {"answer": _TEXT_OR_NULL, "scratchpad": {"type": "string"}, "jobs": _JOBS},
    "required": ["answer", "scratchpad", "jobs"],
    "additionalProperties": False,
}
"""The reply to `findings_request`."""
FINDING_SCHEMA: JsonSchema = {
    "type": "object",
    "properties": {"explanation": {"type": "string"}, "citation": _TEXT_OR_NULL, "answer": _TEXT_OR_NULL},
    "required": ["explanation", "citation", "answer"],
    "additionalProperties": False,
}
"""The reply to `read_request`."""


class Extent(Value):
    """All that the far side is told about the text itself."""

    characters: int
    chunks: int

    def __str__(self) -> str:
        return f"The text has {self.characters} characters in {self.chunks} chunks."


class Job(Value):
    """A question that the small models are asked about every chunk."""

    instruction: str
    advice: str = ""


def jobs_request(task: str, extent: Extent, *, maximum_jobs: int) -> tuple[Message, ...]:
    """Ask for the jobs of the first round."""
    return (Message.system(f"{WRITE_JOBS} At most {maximum_jobs} jobs."), Message.user(f"{task}\n\n{extent}"))


def findings_request(
    task: str, extent: Extent, findings: str, *, scratchpad: str, rounds_left: int, maximum_jobs: int
) -> tuple[Message, ...]:
    """Ask for the answer, or for the jobs of another round. `findings` is made by `minions_findings.show`."""
    notes = f"Scratchpad:\n{scratchpad}\n\n" if scratchpad else ""
    left = f"{rounds_left} rounds left, at most {maximum_jobs} jobs each." if rounds_left else "No rounds left: you must answer."
    system = Message.system(AGGREGATE_FINDINGS)
    return (system, Message.user(f"{task}\n\n{extent}\n\n{notes}Findings:\n{findings}\n\n{left}"))


def read_request(job: Job, chunk: str) -> tuple[Message, ...]:
    """Ask a small model to do one job on one chunk."""
    advice = f"\nAdvice: {job.advice}" if job.advice.strip() else ""
    return (Message.system(READ_CHUNK), Message.user(f"Text:\n{chunk}\n\nJob: {job.instruction}{advice}"))


def answer_form(schema: JsonSchema) -> str:
    """Return the text to append to a task whose answer must be JSON."""
    return f"\n\nThe answer must be JSON, written as a string, that is valid against this schema: {json.dumps(schema)}"
