"""A certificate is replaced while the gateway serves: new connections get it, open ones stay."""

from __future__ import annotations

import os
import ssl
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio
from trio.testing import MockClock

import motet
from motet.actors.gateway.server import open_gateway
from motet.actors.gateway.tls import Certificate
from motet.client import Client, Unreachable, connect
from motet.protocols.errors import ConfigError
from motet.runtime import open_system
from tests.actors.gateway.fake_host import FakeHost
from tests.actors.gateway.test_monitoring import certificate


@asynccontextmanager
async def serving(tmp_path: Path) -> AsyncGenerator[tuple[motet.Host, str]]:
    """A host whose gateway has the first of two certificates, and the address of it."""
    async with motet.open_host() as host:
        yield host, await host.serve(configured(tmp_path))


def configured(folder: Path) -> motet.GatewayConfig:
    chain, key = map(str, certificate(folder))
    return motet.GatewayConfig(listen="127.0.0.1:0", certificate=chain, private_key=key)


def trusting(folder: Path) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=str(folder / "certificate.pem"))


def replace(folder: Path) -> Path:
    """Put another certificate in place of the one there; a folder in which only that is."""
    other = folder / "other"
    other.mkdir()
    for new, name in zip(certificate(other), ("certificate.pem", "key.pem"), strict=True):
        copy = folder / f"{name}.new"
        copy.write_bytes(new.read_bytes())
        os.replace(copy, folder / name)
    return other


async def answers(client: Client) -> bool:
    return (await client.status()).running == 0


async def test_a_reload_takes_the_new_certificate_and_open_connections_go_on(
    tmp_path: Path,
) -> None:
    async with serving(tmp_path) as (host, url):
        old = trusting(tmp_path)
        async with connect(url, tls=old) as early:
            new = trusting(replace(tmp_path))
            await host.reload(motet.HostConfig())

            async with connect(url, tls=new) as late:
                assert await answers(late)
            assert await answers(early)
            with pytest.raises(Unreachable, match="no TLS"):
                async with connect(url, tls=old):
                    raise AssertionError("it has the certificate of before")


async def test_an_unusable_certificate_is_refused_and_the_last_good_one_stays(
    tmp_path: Path,
) -> None:
    async with serving(tmp_path) as (host, url):
        good = trusting(tmp_path)
        (tmp_path / "certificate.pem").write_text("no certificate")

        with pytest.raises(ConfigError, match=r"gateway\.certificate"):
            await host.reload(motet.HostConfig())
        async with connect(url, tls=good) as client:
            assert await answers(client)


async def test_replaced_files_are_read_at_the_next_tick(
    tmp_path: Path, autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    async with trio.open_nursery() as nursery, open_system() as system:
        served = await open_gateway(system, FakeHost(nursery).api, configured(tmp_path))
        certificate = served.live.settings.tls
        assert certificate is not None
        before = certificate.context

        (tmp_path / "key.pem").write_text("no key")
        while "the last good certificate stays" not in caplog.text:
            await trio.sleep(60)
        assert certificate.context is before
        replace(tmp_path)
        while certificate.context is before:
            await trio.sleep(60)
        nursery.cancel_scope.cancel()

    # Not at every tick; but a look may fall between the writing of the two new files.
    assert caplog.text.count("the last good certificate stays") <= 2


def test_a_key_that_comes_after_its_certificate_is_waited_for(tmp_path: Path) -> None:
    chain, key = certificate(tmp_path)
    own = Certificate(str(chain), str(key))
    before = own.context
    assert not own.refresh()

    other = tmp_path / "other"
    other.mkdir()
    new_chain, new_key = certificate(other)
    chain.write_bytes(new_chain.read_bytes())
    with pytest.raises(ConfigError):
        own.refresh()
    assert own.context is before
    key.write_bytes(new_key.read_bytes())

    assert own.refresh()
    assert own.context is not before
    assert not own.refresh()
