"""The near side of `minions`: a context in chunks, and each job done on each chunk."""

from collections import Counter
from dataclasses import dataclass, field

import anyio

from ...protocols import Agent, InvalidRequest, NearfarError, Sensitivity, StepRequest
from ...protocols.messages import Value
from ..agents.pool import Member
from ..task.sections.minions import MinionsConfig
from ..task.task import Task
from .calls import CallLog
from .minions_chunks import cut_into_chunks
from .minions_findings import Finding, read_finding
from .minions_prompts import FINDING_SCHEMA, Extent, Job, read_request


class Round(Value):
    """The state of a task that `minions` serves."""

    number: int
    """1 is the first."""
    jobs: tuple[Job, ...]
    scratchpad: str = ""
    """The far side's notes from the rounds before."""
    findings: str = ""
    """The findings of the jobs, as text for the far side."""
    found: int = 0
    """How many findings that are."""


class Material:
    """A task's context in chunks. Raises `InvalidRequest` where there is nothing to read, or more than the policy allows."""

    def __init__(self, task: Task) -> None:
        self.task = task
        self.policy: MinionsConfig = task.policy.minions
        context = task.context or ""
        if not context.strip():
            raise InvalidRequest("strategy minions needs a context to read", hint='run(prompt, context="...", strategy="minions")')
        cuts = cut_into_chunks(context, characters=self.policy.chunk_characters, overlap=self.policy.overlap_characters)
        self.chunks = [chunk for chunk in cuts if chunk.strip()]
        self.extent = Extent(characters=len(context), chunks=len(self.chunks))
        if len(self.chunks) > self.policy.maximum_readings:
            problem = f"the context has {len(self.chunks)} chunks, and a round may have {self.policy.maximum_readings} readings"
            raise InvalidRequest(problem, hint="raise minions.chunk_characters or minions.maximum_readings")

    @property
    def maximum_jobs(self) -> int:
        """Per round."""
        return min(self.policy.maximum_jobs, self.policy.maximum_readings // len(self.chunks))


@dataclass
class Readings:
    """One round's readings: each job on each chunk.

    They start chunk by chunk, so that the agent's prefix cache serves all jobs on a chunk. One that fails counts as an abstention.
    """

    reader: Member
    material: Material
    now: Round
    log: CallLog
    findings: dict[tuple[int, int], Finding] = field(default_factory=dict)
    """Findings by the indices of job and chunk."""
    errors: list[NearfarError] = field(default_factory=list)
    """Errors of the readings that failed."""

    async def run(self) -> None:
        """Do them all. Raises what opening the agent raises, and the first error where every reading failed."""
        agent = await self.reader.open()
        slots = anyio.Semaphore(min(self.material.policy.parallel, agent.card.limits.concurrency))
        async with anyio.create_task_group() as running:
            for chunk in range(len(self.material.chunks)):
                for job in range(len(self.now.jobs)):
                    await slots.acquire()
                    running.start_soon(self._read, agent, job, chunk, slots)
        if len(self.errors) == self._total:
            self.errors[0].add_note(f"all {self._total} readings of the context failed; this is the first error")
            raise self.errors[0]

    @property
    def reasons(self) -> list[str]:
        """A summary of the readings, and the reasons why some failed."""
        summary = f"round {self.now.number}: {len(self.now.jobs)} jobs on {len(self.material.chunks)} chunks, {len(self.findings)} findings"
        problems = Counter(f"{type(error).__name__}: {error}" for error in self.errors)
        return [summary, *(f"{count} of {self._total} readings failed: {problem}" for problem, count in problems.most_common())]

    @property
    def _total(self) -> int:
        return len(self.material.chunks) * len(self.now.jobs)

    async def _read(self, agent: Agent, job: int, chunk: int, slots: anyio.Semaphore) -> None:
        text = self.material.chunks[chunk]
        try:
            reply = await self.log.ask(self.reader, self._request(agent, job, chunk), role="extract", turn=self.now.number - 1)
            finding = read_finding(reply.text, text)
        except NearfarError as error:
            self.errors.append(error)
        else:
            if finding is not None:
                self.findings[job, chunk] = finding
        finally:
            slots.release()

    def _request(self, agent: Agent, job: int, chunk: int) -> StepRequest:
        policy = self.material.task.policy
        most = self.material.policy.finding_tokens
        return StepRequest(
            messages=read_request(self.now.jobs[job], self.material.chunks[chunk]),
            output_schema=FINDING_SCHEMA if agent.card.capabilities.json_schema else None,
            max_output_tokens=most if policy.maximum_output_tokens is None else min(most, policy.maximum_output_tokens),
            temperature=policy.temperature,
            effort=policy.effort,
            timeout=policy.attempt_timeout,
            sensitivity=Sensitivity.PRIVATE,  # whatever the task is: no far agent would take this
            idempotency_key=f"{self.material.task.idempotency_key}/{self.now.number}/{job}/{chunk}",
        )
