"""The pytest plugin as a project meets it that has motet installed and nothing configured."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

pytest_plugins = ["pytester"]

LIGHT = {
    "motet",
    "motet.actors",
    "motet.actors.models",
    "motet.actors.models.switch",
    "motet.protocols",
    "motet.protocols.version",
    "motet.testing",
    "motet.testing.plugin",
}
PLAIN = """
    import hypothesis.strategies as st
    import pytest
    from hypothesis import given, settings

    async def test_an_async_test_runs_on_trio():
        import trio
        await trio.sleep(0)

    @pytest.fixture
    async def answer():
        import trio
        await trio.sleep(0)
        yield 42

    async def test_async_fixtures_do_too(answer):
        assert answer == 42

    async def test_ten_minutes_take_no_time(virtual_clock):
        import trio
        await trio.sleep(600)
        assert trio.current_time() == 600

    @given(st.integers())
    @settings(max_examples=5)
    async def test_hypothesis_goes_with_it(number):
        import trio
        await trio.sleep(0)

    class TestClass:
        async def test_a_method(self):
            import trio
            await trio.sleep(0)
"""


@pytest.mark.parametrize("by", ["option", "ini"])
def test_requests_are_allowed_by_option_and_by_ini(pytester: pytest.Pytester, by: str) -> None:
    pytester.makepyfile("""
        from motet import testing

        def test_allowed():
            assert testing.ALLOW_MODEL_REQUESTS
    """)
    if by == "ini":
        pytester.makeini("[pytest]\nmotet_allow_model_requests = true\n")
    arguments = ["--motet-allow-model-requests"] if by == "option" else []

    pytester.runpytest_inprocess(*arguments).assert_outcomes(passed=1)


def test_a_test_that_another_plugin_claims_is_left_to_it(pytester: pytest.Pytester) -> None:
    """Given anyio's mark; and a plugin, as pytest-asyncio is one, whose items have their class."""
    pytester.makeconftest("""
        import asyncio
        import pytest

        class Theirs(pytest.Function):
            def runtest(self):
                asyncio.run(self.obj())

        def pytest_pycollect_makeitem(collector, name, obj):
            if name.startswith("test_theirs"):
                return Theirs.from_parent(collector, name=name)
    """)
    pytester.makepyfile("""
        import asyncio
        import pytest
        import trio

        async def test_theirs():
            await asyncio.sleep(0)

        @pytest.mark.anyio
        @pytest.mark.parametrize("anyio_backend", ["asyncio"])
        async def test_of_anyio(anyio_backend):
            await asyncio.sleep(0)

        async def test_ours():
            await trio.sleep(0)
    """)
    pytester.runpytest_inprocess().assert_outcomes(passed=3)


def test_without_the_plugin_nothing_of_it_is_there(pytester: pytest.Pytester) -> None:
    pytester.makepyfile("""
        def test_absent(request):
            assert not request.config.pluginmanager.hasplugin("motet")
    """)
    pytester.runpytest_inprocess("-p", "no:motet").assert_outcomes(passed=1)


HOSTS = """
    import motet
    from motet.testing import ScriptedModel, call, fail, say

    def test_timeout_is_reported_not_raised(motet_host):
        agent = motet.Agent("t", model=ScriptedModel([
            call("slow", n=1),
            say("the tool timed out"),
        ]))

        @agent.tool(timeout=2)
        async def slow(n: int) -> str:
            import trio
            await trio.sleep(60)
            return "never"

        r = motet_host.run(agent, "go")
        assert r.output == "the tool timed out"
        assert r.errors[0].kind == "timeout"
        assert motet_host.now() == 2.0
        agent.model.assert_complete()

    def test_provider_hiccup(motet_host):
        agent = motet.Agent("t", model=ScriptedModel([fail(429, retry_after=7), say("ok")]))
        assert motet_host.run(agent, "go").output == "ok"
        assert motet_host.now() >= 7

    async def test_an_async_test_may_drive_a_host_too(motet_host):
        agent = motet.Agent("t", model=ScriptedModel([say("ok")]))
        assert motet_host.run(agent, "go").output == "ok"

    def test_the_last_steps_are_shown(motet_host):
        motet_host.run(motet.Agent("t", model=ScriptedModel([say("ok")])), "go")
        assert motet_host.now() == 1
"""
FORGETFUL = """
    import datetime
    import socket
    import subprocess
    import threading
    from time import time

    import motet
    import pytest
    from motet.testing import ScriptedModel, call, say

    def a_socket():
        socket.create_connection(("127.0.0.1", 9))

    def a_thread():
        threading.Thread(target=int).start()

    def a_process():
        subprocess.run(["true"])

    def a_wall_clock():
        time()

    def a_calendar():
        datetime.datetime.now(datetime.UTC)

    @pytest.mark.parametrize(
        "mistake", [a_socket, a_thread, a_process, a_wall_clock, a_calendar]
    )
    def test_forgets(motet_host, mistake):
        async def tool() -> str:
            mistake()
            return "done"

        model = ScriptedModel([call("tool"), say("ok")])
        motet_host.run(motet.Agent("t", model=model, tools=[tool]), "go")

    def test_forgets_a_model(motet_host):
        motet_host.run(motet.Agent("t", model="anthropic:claude-opus-4-5"), "go")

    async def test_forgets_another():
        async with motet.open_host() as host:
            await host.run(motet.Agent("t", model="openai:gpt-5.2"), "hello")
"""


def test_the_plugin_loads_next_to_nothing_of_motet() -> None:
    program = "import sys, motet.testing.plugin; print(*sys.modules)"
    ran = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    loaded = {name for name in ran.stdout.split() if name.partition(".")[0] == "motet"}
    assert loaded <= LIGHT
    assert not {"apsw", "attrs", "hypothesis", "msgspec", "trio"} & set(ran.stdout.split())


@pytest.mark.slow
def test_a_project_without_configuration_has_all_of_it_with_xdist_too(
    pytester: pytest.Pytester,
) -> None:
    """Async tests run on Trio, hosts in virtual time; what is real fails and names its line."""
    pytester.makepyfile(test_plain=PLAIN, test_hosts=HOSTS, test_forgetful=FORGETFUL)

    result = pytester.runpytest_inprocess("-n1")  # the worker is a process of its own

    result.assert_outcomes(passed=8, failed=8)
    out = result.stdout.str()
    assert re.search(r"-- motet_host, at 0 s --(.*\n)+?  step +time  a b ", out)
    for line, name, what in (
        (12, "a_socket", "socket"),
        (15, "a_thread", "threading.Thread"),
        (18, "a_process", "Popen"),
        (21, "a_wall_clock", "time.time"),
        (24, "a_calendar", "datetime.now"),
    ):
        assert f"test_forgetful.py:{line} (in {name}) used {what} inside a simulation" in out
    asked = r"anthropic:claude-opus-4-5 would be asked for real by \S+test_forgetful.py:38 \("
    assert re.search(asked, out)
    asked = r"openai:gpt-5.2 would be asked for real by \S+test_forgetful.py:42 \(.*switched off"
    assert re.search(asked, out)


AGENTS = """
    import motet

    agent = motet.Agent("helper", model="openai:gpt-5.2")

    @agent.tool
    async def add(a: int, b: int) -> str:
        return str(a + b)
"""
PROGRAMS = """
    from agents import agent
    from hypothesis import Phase, given, settings

    from motet import testing as mt

    # Shrinking is shown elsewhere, and takes its time.
    quickly = settings(deadline=None, phases=[Phase.generate], derandomize=True)

    def asks_nobody(snapshot):
        return ["a model was asked"] if snapshot.asked else []

    @quickly
    @given(mt.programs(agent, users=2, max_steps=4))
    def test_finds(program):
        with mt.simulated_host(seed=program.seed) as host:
            program.execute(host)
            mt.check(host, asks_nobody)

    def test_shows_nothing():
        for number in range(3):
            mt.sometimes(number > 1, "a large number")
            mt.sometimes(number > 9, "a huge number")
"""


@pytest.mark.extended
def test_what_a_test_finds_is_a_case_that_replays_and_what_it_never_reaches_fails(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytester.makepyfile(agents=AGENTS, test_found=PROGRAMS)

    found = pytester.runpytest_inprocess()  # the replay below is a process of its own

    found.assert_outcomes(failed=2)
    replay = "pytest --motet-replay .motet/cases/test_found-test_finds.json"
    found.stdout.fnmatch_lines(["*never reached, though looked at 6 times:", "  a huge number"])
    assert replay in found.stdout.str()
    assert "def test_found() -> None:" in found.stdout.str()

    monkeypatch.setenv("PYTHONHASHSEED", "7")
    again = pytester.runpytest_subprocess(*replay.split()[1:])

    again.assert_outcomes(failed=1)
    assert "asks_nobody: a model was asked" in again.stdout.str()
    assert "a case was written" not in again.stdout.str()


def test_a_case_that_cannot_be_replayed_is_said_at_once(pytester: pytest.Pytester) -> None:
    record = pytester.makefile(".json", record='{"case": "run"}')

    gone = pytester.runpytest_inprocess("--motet-replay", "gone.json")
    other = pytester.runpytest_inprocess("--motet-replay", str(record))

    assert gone.ret == other.ret == pytest.ExitCode.USAGE_ERROR
    gone.stderr.fnmatch_lines(["*--motet-replay: *No such file*gone.json*"])
    other.stderr.fnmatch_lines(["*record.json is the record of a run*mt.replay_run*"])
