"""The pytest plugin as a project meets it that has motet installed and nothing configured."""

from __future__ import annotations

import pytest

pytest_plugins = ["pytester"]

PLAIN = """
    import sys

    import hypothesis.strategies as st
    import pytest
    from hypothesis import given, settings

    LIGHT = {"motet", "motet.actors", "motet.actors.switch", "motet.protocols",
             "motet.protocols.version", "motet.testing", "motet.testing.plugin"}

    def test_nothing_heavy_was_imported():
        loaded = {name for name in sys.modules if name.partition(".")[0] == "motet"}
        assert loaded <= LIGHT, loaded - LIGHT
        assert not {"apsw", "h11", "msgspec"} & sys.modules.keys()

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
ASKING = """
    import motet

    async def test_asks_for_real():
        agent = motet.Agent("t", model="openai:gpt-5.2")
        async with motet.open_host() as host:
            await host.run(agent, "hello")
"""


@pytest.mark.slow
def test_async_tests_run_on_trio_and_real_models_are_refused(pytester: pytest.Pytester) -> None:
    """Given a project without any configuration, also when its tests run in two processes."""
    pytester.makepyfile(test_plain=PLAIN, test_asking=ASKING)

    result = pytester.runpytest_subprocess("-n2", "--dist=loadfile")

    result.assert_outcomes(passed=6, failed=1)
    result.stdout.fnmatch_lines(["*openai:gpt-5.2 would be asked for real*switched off here*"])
    result.stdout.fnmatch_lines(["*test_asking.py::test_asks_for_real*"])


@pytest.mark.slow
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

    pytester.runpytest_subprocess(*arguments).assert_outcomes(passed=1)


@pytest.mark.slow
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
    pytester.runpytest_subprocess().assert_outcomes(passed=3)


@pytest.mark.slow
def test_without_the_plugin_nothing_of_it_is_there(pytester: pytest.Pytester) -> None:
    pytester.makepyfile("""
        import sys

        def test_absent(request):
            assert "motet" not in sys.modules
            assert not request.config.pluginmanager.hasplugin("motet")
    """)
    pytester.runpytest_subprocess("-p", "no:motet").assert_outcomes(passed=1)
