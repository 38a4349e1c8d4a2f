"""One task told three ways: the steps of near alone, of far alone, and of both together, in plain words."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from html import escape
from typing import Final

from ...protocols.steps import Value
from ..routing.outcome_records import RunRecord
from ..task.events import AttemptStarted, SupervisorSpoke, TaskEvent, ToolFinished, ToolStarted
from .study.workbench import Item, Workbench
from .worlds.loading import SearchWorld

STORY_STYLE: Final = """
.story { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 17rem), 1fr)); gap: 1rem; margin: 1rem 0 2rem }
.story section { border: 1px solid var(--line); border-radius: .5rem; padding: .6rem 1rem }
.story h3 { margin: .2rem 0 .6rem } .story ol { margin: 0; padding-left: 1.2rem }
.story li { margin: .25rem 0; overflow-wrap: anywhere; white-space: pre-wrap }
.story .answer { border-top: 1px solid var(--line); margin: .7rem 0 .2rem; padding-top: .5rem }
"""


class Telling(Value):
    """One way to do the task."""

    title: str
    steps: tuple[str, ...]
    """Calls of tools with their results, and what a supervisor said, which may have several lines."""
    agent: str
    """Name of the agent that answered."""
    record: RunRecord

    @property
    def answer(self) -> str:
        """The answer, or the error that took its place."""
        return self.record.answer if self.record.error is None else f"it failed: {self.record.error}"

    @property
    def price(self) -> str:
        """State how much the far side read, and its price."""
        record = self.record
        if not record.far_calls:
            return "nothing left this device"
        cost = "an unknown price" if record.dollars is None else f"${record.dollars:.5f}"
        times = "once" if record.far_calls == 1 else f"{record.far_calls} times"
        return f"far was asked {times} and read {record.far_usage.input_tokens} tokens, for {cost}"


class Story(Value):
    """One task and all its tellings: near alone, far alone, together."""

    task: str
    right_answer: str
    tellings: tuple[Telling, ...]

    @property
    def moral(self) -> str:
        """Compare working together with the far side alone; empty unless both answered right."""
        alone, together = (telling.record for telling in self.tellings[1:3])
        if not (alone.success and together.success and alone.dollars and together.dollars is not None):
            return ""
        return f"together they found the same answer at {together.dollars / alone.dollars:.0%} of the price of far alone"


class Teller:
    """Turns the events of one run into steps in plain words."""

    def __init__(self, hear: Callable[[str], object]) -> None:
        """Pass each step on to `hear` as it happens."""
        self._hear = hear
        self._calls: dict[str, str] = {}
        self.steps: list[str] = []
        self.agent = ""

    def take(self, event: TaskEvent) -> None:
        """Take the next event of the run."""
        match event:
            case AttemptStarted():
                self.agent = event.agent
            case SupervisorSpoke(verdict=None):
                self._tell("\n  ".join([f"{event.agent} plans:", *event.text.splitlines()]))
            case SupervisorSpoke():
                self._tell(f"{event.agent} checks: {event.verdict}")
            case ToolStarted():
                arguments = ", ".join(str(value) for value in event.call.arguments.values())
                self._calls[event.call.id] = f"{event.call.name}({arguments})"
            case ToolFinished():
                call = self._calls.pop(event.result.call_id, event.result.name)
                self._tell(f"{self.agent}: {call} -> {event.result.content}")

    def _tell(self, step: str) -> None:
        self.steps.append(step)
        self._hear(step)


async def tell(bench: Workbench, item: Item, title: str, hear: Callable[[str], object]) -> Telling:
    """Run an item and return how it went; `hear` is told each step as it happens."""
    teller = Teller(hear)
    record = await bench.run(item, teller.take)
    return Telling(title=title, steps=tuple(teller.steps), agent=teller.agent, record=record)


def search_task(index: int, seed: int) -> tuple[str, str]:
    """Return a task of the search world, drawn with a seed, and its right answer."""
    world = SearchWorld()
    task = world.tasks(index + 1, seed)[index]
    return task.prompt, world.question(task).answer


def render_story(story: Story) -> Iterator[str]:
    """Yield the task, and its tellings side by side, as HTML."""
    yield f"<h2>One task, three ways: {escape(story.task)}</h2>"
    yield '<div class="story">'
    yield from map(_column, story.tellings)
    yield "</div>"


def _column(telling: Telling) -> str:
    steps = "".join(f"<li>{escape(step)}</li>" for step in telling.steps)
    verdict = '<strong class="right">right</strong>' if telling.record.success else '<strong class="wrong">wrong</strong>'
    return (
        f"<section><h3>{escape(telling.title.capitalize())}</h3><ol>{steps}</ol>"
        f'<p class="answer">{escape(telling.agent)} answers: <strong>{escape(telling.answer)}</strong>, {verdict}</p>'
        f'<p class="note">{escape(telling.price.capitalize())}.</p></section>'
    )


def story_figures(story: Story, fields: Sequence[str]) -> Mapping[str, object]:
    """Return the story for scripts, with those fields of each run's record."""
    return {
        "task": story.task,
        "right_answer": story.right_answer,
        "runs": [
            {**telling.record.model_dump(mode="json", include=set(fields)), "steps": telling.steps, "title": telling.title}
            for telling in story.tellings
        ],
    }
