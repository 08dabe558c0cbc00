"""A first program: a host, an agent, one question."""

import trio

import motet

agent = motet.Agent(
    "helper",
    model="demo",  # or "openai:gpt-5.2", "anthropic:claude-sonnet-4-5", ...
    instructions="Answer in one short paragraph.",
)


async def main() -> None:
    async with motet.open_host("state/") as host:
        result = await host.run(agent, "hello", session="user:alice")
        print(result.output)
        print(f"{result.status}, {result.usage.total_tokens} tokens")
        print(f"rows of this session so far: {len(await host.history('user:alice'))}")


if __name__ == "__main__":
    trio.run(main)
