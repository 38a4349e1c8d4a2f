"""A long document: the far model directs the reading and never sees the text, which stays on this device (MinionS).

The shipped models cannot write or do such jobs, so recorded replies of a large model stand in for both sides.
"""

import asyncio
import os
from itertools import groupby
from pathlib import Path
from tempfile import TemporaryDirectory

from nearfar import Hybrid, PrivacyRecords, ReplayAgent

HERE = Path(__file__).parent
NEAR = os.environ.get("NEARFAR_NEAR") or ReplayAgent.load(HERE / "near.jsonl")
FAR = os.environ.get("NEARFAR_FAR") or ReplayAgent.load(HERE / "far.jsonl")
LEASE = (HERE / "lease.txt").read_text(encoding="utf-8")
QUESTION = (
    "I am the tenant and want to move out at the end of January 2027. "
    "How much notice must I give, what does it cost me, and when is my deposit returned?"
)
WORK = {
    "jobs": "writes the jobs; it knows the question and the length of the text",
    "extract": "does a job on a piece of the text, on this device",
    "aggregate": "reads what was found, and answers or writes more jobs",
}


async def main(folder: Path) -> None:
    print(f"the document: a lease of {len(LEASE):,} characters")
    print("the question:", QUESTION)
    policy = {"strategy": "minions", "sensitivity": "public", "minions": {"chunk_characters": 900}}
    async with Hybrid(near=NEAR, far=FAR, policy=policy, records=folder) as hybrid:
        result = await hybrid.run(QUESTION, context=LEASE)
    for (agent, role), calls in groupby(result.calls, key=lambda call: (call.agent, call.role)):
        print(f"{agent} {WORK[role]} (calls: {len(list(calls))})")
    print("answer:", result.text)
    cost = "an unknown price" if result.far.dollars is None else f"${result.far.dollars:.5f}"
    print(f"near read {result.near.usage.input_tokens:,} tokens here; far read {result.far.usage.input_tokens:,} for {cost}")
    for message in PrivacyRecords(folder).outbound_log(result.id):
        print(f"audit: {message.bytes:,} bytes {message.outcome} for {message.agent} ({message.role})")


if __name__ == "__main__":
    with TemporaryDirectory() as name:
        asyncio.run(main(Path(name)))
