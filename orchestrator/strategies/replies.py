"""Read the replies of agents: a JSON object, a plan, or a supervisor's verdict."""

import re
from dataclasses import dataclass

from pydantic import JsonValue

from ...protocols import FinishReason, JsonSchema, StepReply
from ...protocols.validation import parse_output
from ..task.modes import Strategy
from ..task.policy import Verdict


def read_json_reply(text: str, schema: JsonSchema) -> JsonValue:
    """Return the JSON object in a reply, valid against `schema`; words and code fences around it are passed over.

    Agents without the `json_schema` capability decorate what they were asked for. Raises `InvalidOutput`, which says what is wrong.
    """
    start, end = text.find("{"), text.rfind("}")
    return parse_output(text[start : end + 1] if 0 <= start < end else text, schema)


_STEP = re.compile(r"^\s*(?:[-*\u2022]|(?:step\s*)?\d+\s*[.):])\s*\S", re.IGNORECASE | re.MULTILINE)
_VERDICT = re.compile(r"[\W_]*(CONTINUE|INTERVENE)(?![^\W_])[*_]*[.:]?[*_]*", re.IGNORECASE)


@dataclass(frozen=True)
class Judgement:
    """A check's verdict as it can be acted upon."""

    verdict: Verdict
    guidance: str = ""
    """With INTERVENE: the new plan, or the summary and advice."""
    problem: str = ""
    """With an unreadable verdict: what is wrong with it."""


def plan_problem(reply: StepReply, *, longest: int) -> str | None:
    """Return why a reply is no plan; None where it is one."""
    if reply.tool_calls:
        return "it calls a tool instead of planning"
    if reply.finished.reason is FinishReason.LENGTH:
        return "the plan breaks off at the limit of its length"
    return _guidance_problem(reply.text.strip(), longest=longest) or _step_problem(reply.text)


def read_verdict(reply: StepReply, *, strategy: Strategy, longest: int) -> Judgement:
    """Return the verdict of a reply: its first word, and below it what the strategy asks for."""
    found = _VERDICT.match(reply.text)
    if reply.tool_calls or found is None:
        return Judgement(
            Verdict.UNREADABLE, problem="it calls a tool" if reply.tool_calls else "its first word is neither CONTINUE nor INTERVENE"
        )
    if found[1].upper() == "CONTINUE":
        return Judgement(Verdict.CONTINUE)
    guidance = reply.text[found.end() :].strip()
    problem = _guidance_problem(guidance, longest=longest) or (_step_problem(guidance) if strategy is Strategy.PEVR else None)
    if problem is None and reply.finished.reason is FinishReason.LENGTH:
        problem = "it breaks off at the limit of its length"
    if problem is not None:
        return Judgement(Verdict.UNREADABLE, problem=f"INTERVENE, but {problem}")
    return Judgement(Verdict.INTERVENE, guidance=guidance)


def _guidance_problem(text: str, *, longest: int) -> str | None:
    if not text:
        return "there is nothing in it"
    if len(text) > longest:
        return f"it has {len(text):,} characters, and at most {longest:,} are used"
    return None


def _step_problem(text: str) -> str | None:
    return None if _STEP.search(text) else "it has no line that is a step, such as `1. open(...)`"
