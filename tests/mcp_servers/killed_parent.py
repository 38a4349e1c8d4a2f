"""Start the stub server, let it hang, print its process id, and wait to be killed."""

import sys

import anyio
from mcp_stubs import Caller, stub_config


async def main() -> None:
    """Wait in a call that never ends."""
    async with Caller(stub_config()) as stub:
        sys.stdout.write((await stub.call("process")).content)
        sys.stdout.flush()
        await stub.call("hang")


if __name__ == "__main__":
    anyio.run(main)
