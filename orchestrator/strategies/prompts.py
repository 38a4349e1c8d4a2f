"""Prompts of the supervised strategies. The embedded models are trained on exactly these words, so keep both in step.

Instructions stand first and what grows stands last, so that a provider's prefix cache can serve repeated checks of one task.
"""

from collections.abc import Sequence

from ...protocols import Message
from ..task.task import transcript

CONTINUE = "CONTINUE"
INTERVENE = "INTERVENE"

PLAN = (
    "Plan the task: one numbered step per line, each a call of one tool, the last one the answer. "
    "Write <...> for what an earlier step will show. Do not carry it out."
)
ADAPT_PLAN = (
    "Below are a task and the plan of a similar one. Reply with the plan for this task: "
    "keep the steps and their form, and put in what this task names."
)
VERIFY_PLAN = (
    "Check the work against the plan. If it is on track, reply CONTINUE. "
    "If not, reply INTERVENE and on the next lines a plan of what remains; the work so far will be forgotten."
)
VERIFY_PROGRESS = (
    "Judge the progress of the work. If it is sound, reply CONTINUE. "
    "If not, reply INTERVENE, then a line with a summary of what was done and found, then a line with advice on what to do next "
    "and which errors to avoid; the work so far will be forgotten."
)
NOT_YET_RUN = "The last calls have not been run yet: they run if you reply CONTINUE."


def plan_request(task: str) -> tuple[Message, ...]:
    """Ask for a plan."""
    return (Message.system(PLAN), Message.user(task))


def adapt_plan_request(task: str, plan: str) -> tuple[Message, ...]:
    """Ask for an earlier plan to be fitted to a task."""
    return (Message.system(ADAPT_PLAN), Message.user(f"{task}\n\nPlan:\n{plan}"))


def verify_plan_request(task: str, plan: str, work: Sequence[Message]) -> tuple[Message, ...]:
    """Ask for a verdict on the work under a plan, and for a new plan where it needs one."""
    return (Message.system(VERIFY_PLAN), Message.user(f"{task}\n\nPlan:\n{plan}\n\nWork:\n{transcript(work)}"))


def verify_progress_request(task: str, guidance: str, work: Sequence[Message]) -> tuple[Message, ...]:
    """Ask for a verdict on the progress, and for a summary and advice where it needs them; `guidance` is the last such pair."""
    before = f"{guidance}\n\n" if guidance else ""
    return (Message.system(VERIFY_PROGRESS), Message.user(f"{task}\n\n{before}Work:\n{transcript(work)}"))


def with_plan(task: str, plan: str) -> str:
    """Return the executor's prompt under a plan."""
    return f"{task}\n\nPlan:\n{plan}" if plan else task


def with_guidance(task: str, guidance: str) -> str:
    """Return the executor's prompt under a summary and advice, which are empty until the supervisor first intervenes."""
    return f"{task}\n\n{guidance}" if guidance else task
