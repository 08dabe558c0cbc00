"""Failures: the model reads a short error, the full one is stored, a limit ends a run."""

import trio

import motet
from motet.testing import ScriptedModel, call, say

MODEL = ScriptedModel(
    [call("lookup", name="bob"), say("I could not find bob."), *[call("lookup", name="eve")] * 2]
)
agent = motet.Agent("clerk", model=MODEL)


@agent.tool
async def lookup(name: str) -> str:
    """Find a person."""
    raise RuntimeError(f"the index of 12,000 people is broken near {name!r}")


async def main() -> None:
    async with motet.open_host() as host:
        result = await host.run(agent, "who is bob?")
        failed = result.errors[0]
        print(result.status, "-", result.output)
        assert failed.error_id is not None  # a refused call has none
        stored = await host.error(failed.error_id)
        print(f"{stored.tool_name}, {stored.kind}: {stored.short_summary}")
        print("stored in full:", sorted(stored.raw_error))

        try:
            await host.run(agent, "who is eve?", limits=motet.Limits(turns=2))
        except motet.LimitReached as limited:
            print(f"limited by {limited.limit}")


if __name__ == "__main__":
    trio.run(main)
