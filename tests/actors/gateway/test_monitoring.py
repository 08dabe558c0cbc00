"""Health, metrics and TLS, as a load balancer, a scraper and a browser meet them."""

from __future__ import annotations

import datetime
import ipaddress
import json
import re
import ssl
from pathlib import Path

import attrs
import pytest
import trio
from trio_websocket import wrap_client_stream

import motet
from motet.actors.gateway.auth import StaticTokens, token_entry
from motet.actors.gateway.context import Settings
from motet.actors.storage.tokens import new_token
from motet.protocols import gateway as wire
from motet.protocols.errors import ConfigError
from motet.protocols.host import HostStatus
from motet.protocols.meters import Figures, Meters
from motet.protocols.metrics import GatewayCounts, exposition
from tests.actors.gateway.fake_host import FakeHost
from tests.actors.gateway.fakes import Client, connected, context_of
from tests.actors.gateway.test_http import body_of, exchange, head, status_of

VERA, ROOT = new_token(), new_token()
TOKENS = StaticTokens((token_entry(VERA, "vera", "viewer"), token_entry(ROOT, "root", "admin")))
SAMPLE = re.compile(r'[a-z_]+(\{[a-z_]+="[^"]*"(,[a-z_]+="[^"]*")*\})? [0-9.e+-]+')


@pytest.mark.parametrize("path", ["/healthz", "/healthz/live", "/healthz/ready"])
async def test_a_healthy_host_is_live_and_ready(path: str) -> None:
    answer = await exchange(head("GET", path))
    assert status_of(answer) == 200
    assert json.loads(body_of(answer))["status"] == "ok"


async def test_a_full_gateway_is_live_and_not_ready() -> None:
    context = context_of(FakeHost(), Settings(limits=wire.Limits(connections=1)))
    async with connected(context):
        assert status_of(await exchange(head("GET", "/healthz/live"), context=context)) == 200
        ready = await exchange(head("GET", "/healthz/ready"), context=context)
        assert (status_of(ready), json.loads(body_of(ready))) == (503, {"status": "full"})


async def test_a_host_that_drains_is_live_and_not_ready() -> None:
    host = FakeHost()
    host.answers["status"] = HostStatus("b", "1", 1, 1, 1, 0, 0, 0, 0, draining=True)
    context = context_of(host)
    assert status_of(await exchange(head("GET", "/healthz/live"), context=context)) == 200
    ready = await exchange(head("GET", "/healthz/ready"), context=context)
    assert (status_of(ready), json.loads(body_of(ready))) == (503, {"status": "draining"})


async def test_metrics_have_the_sizes_of_the_files_of_the_database(tmp_path: Path) -> None:
    async with motet.open_host(tmp_path) as host:
        status = host.status()
        size = (tmp_path / "motet.db").stat().st_size
    counts = GatewayCounts(0, 0, 0, 0, 0, 0, {})
    lines = exposition(status, Figures(Meters()), counts, 0.0, 0).splitlines()
    assert f'motet_storage_bytes{{part="database"}} {size}' in lines
    assert f'motet_storage_bytes{{part="log"}} {status.log_bytes}' in lines
    assert status.log_bytes > 0


async def test_metrics_count_requests_and_name_no_user() -> None:
    context = context_of(FakeHost())
    async with connected(context) as client:
        await client.result("subscribe", stream="session:secret")
        await client.result("chat.send", session="secret", text="hidden", key="k")
        await client.error("sessions.history", session="nobody")
        await client.error("no.such.method")
        answer = await exchange(head("GET", "/metrics"), context=context)
    text = body_of(answer).decode()
    assert status_of(answer) == 200
    assert "text/plain; version=0.0.4" in answer.decode()
    for line in (
        "motet_gateway_connections 1",
        "motet_gateway_subscriptions 1",
        'motet_gateway_requests_total{method="chat.send",code="ok"} 1',
        'motet_gateway_requests_total{method="sessions.history",code="not_found"} 1',
        'motet_gateway_requests_total{method="unknown",code="unknown_method"} 1',
        'motet_runs{state="running"} 0',
    ):
        assert line in text.splitlines()
    assert not re.search("secret|hidden|local", text)


def test_every_line_of_the_metrics_has_the_format_of_prometheus() -> None:
    status = HostStatus('b"1', 'v"\\\n1', 1.5, 2.0, 1, 2, 3, 4, 5)
    counts = GatewayCounts(1, 2, 3, 4, 5, 6, {("ping", "ok"): 7})
    lines = exposition(status, Figures(Meters()), counts, 1.5, 1 << 20).splitlines()
    samples = [line for line in lines if not line.startswith("#")]
    assert 'motet_info{version="v\\"\\\\\\n1"} 1' in samples
    assert all(SAMPLE.fullmatch(line.replace('\\"', "")) for line in samples)
    described = [line.split()[2] for line in lines if line.startswith("# TYPE")]
    assert len(described) == len(set(described))
    parts = {line.split()[2] for line in lines if line.endswith(" histogram")}
    of_parts = {f"{name}_{part}" for name in parts for part in ("bucket", "sum", "count")}
    named = {re.split(r"[{ ]", line)[0] for line in samples}
    assert named <= set(described) - parts | of_parts


@pytest.mark.parametrize(
    ("token", "status"),
    [(None, 401), ("mtt_x", 401), (VERA, 403), (ROOT, 200)],
    ids=["nobody", "unknown", "viewer", "admin"],
)
async def test_metrics_are_for_admins_where_there_are_tokens(
    token: str | None, status: int
) -> None:
    context = context_of(FakeHost(), Settings(tokens=TOKENS))
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    assert status_of(await exchange(head("GET", "/metrics", **headers), context=context)) == status


async def test_metrics_without_tokens_are_for_this_machine_only() -> None:
    rebound = b"GET /metrics HTTP/1.1\r\nHost: evil.example\r\n\r\n"
    assert status_of(await exchange(rebound)) == 403


def certificate(folder: Path) -> tuple[Path, Path]:
    """Files of a certificate of its own for 127.0.0.1, and of its key."""
    x509 = pytest.importorskip("cryptography.x509")
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "motet")])
    now = datetime.datetime.now(datetime.UTC)
    address = x509.IPAddress(ipaddress.ip_address("127.0.0.1"))
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([address]), critical=False)
        .sign(key, hashes.SHA256())
    )
    files = folder / "certificate.pem", folder / "key.pem"
    files[0].write_bytes(made.public_bytes(serialization.Encoding.PEM))
    files[1].write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )
    return files


async def test_a_gateway_with_a_certificate_speaks_tls_and_nothing_else(tmp_path: Path) -> None:
    chain, key = certificate(tmp_path)
    config = motet.GatewayConfig(listen="127.0.0.1:0", certificate=str(chain), private_key=str(key))
    async with motet.open_host(agents=[motet.Agent("a", model="demo")]) as host:
        url = await host.serve(config)
        assert url.startswith("https://127.0.0.1:")
        port = int(url.rpartition(":")[2])
        trusted = ssl.create_default_context(cafile=str(chain))
        async with trio.open_nursery() as nursery:
            stream = await trio.open_ssl_over_tcp_stream(
                "127.0.0.1", port, ssl_context=trusted, https_compatible=True
            )
            socket = await wrap_client_stream(
                nursery, stream, "127.0.0.1", "/ws", subprotocols=[wire.SUBPROTOCOL]
            )
            client = Client(socket)
            await client.result("connect")
            await client.result("ping")
            await socket.aclose()
            await stream.aclose()
            nursery.cancel_scope.cancel()
        async with await trio.open_tcp_stream("127.0.0.1", port) as plain:
            await plain.send_all(head("GET", "/healthz"))
            assert b"HTTP/1.1" not in await received(plain)


async def received(stream: trio.SocketStream) -> bytes:
    """All bytes until the other side ends."""
    got = b""
    with trio.fail_after(60):
        try:
            async for chunk in stream:
                got += chunk
        except trio.BrokenResourceError:
            pass
    return got


@pytest.mark.parametrize("missing", ["certificate", "key", "both"])
async def test_a_gateway_with_a_bad_certificate_does_not_start(
    tmp_path: Path, missing: str
) -> None:
    chain, key = map(str, certificate(tmp_path))
    given = {
        "certificate": motet.GatewayConfig(private_key=key),
        "key": motet.GatewayConfig(certificate=chain),
        "both": motet.GatewayConfig(certificate=str(tmp_path / "no.pem")),
    }[missing]
    async with motet.open_host() as host:
        with pytest.raises(ConfigError, match=r"gateway\.certificate"):
            await host.serve(attrs.evolve(given, listen="127.0.0.1:0"))
