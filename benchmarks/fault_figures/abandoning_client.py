"""A client that is killed: it asks for an answer and prints a line for each piece of it that comes.

python abandoning_client.py own URL PROMPT           with a gateway process of its own in front of the provider at URL
python abandoning_client.py gateway HOST:PORT PROMPT
"""

import asyncio
import sys

from nearfar.cloud.config import ProviderConfig
from nearfar.orchestrator.compose.gateway_process import GatewayProcess
from nearfar.protocols import Agent, Message, Sensitivity, StepRequest, TextDelta, stream
from nearfar.protocols.client import RemoteAgent


async def main() -> None:
    way, where, prompt = sys.argv[1:]
    agent: Agent
    if way == "own":
        agent = await GatewayProcess.start(ProviderConfig(provider="openai", model="m", base_url=where))
    else:
        agent = await RemoteAgent.connect(where)
    request = StepRequest(messages=(Message.user(prompt),), sensitivity=Sensitivity.PUBLIC)
    async with stream(agent, request) as events:
        async for event in events:
            if isinstance(event, TextDelta):
                print("piece", flush=True)


if __name__ == "__main__":
    asyncio.run(main())
