"""docs/operations.md followed from ``motet init`` to a rolling restart behind nginx."""

from __future__ import annotations

import http.client
import json
import re
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import attrs
import msgspec
import pytest
import trio

from motet.client import Client, connect
from motet.protocols.chat import UserMessage
from motet.protocols.gateway import Sent
from motet.protocols.gateway_records import RunWaited
from tests.motet.command import PATIENCE, ROOT, Process, environment, motet, started

NGINX = shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin:/usr/local/sbin")
OPENSSL = shutil.which("openssl")
PAGE = (ROOT / "docs/operations.md").read_text("utf-8")
NAME = "localhost"
KEY = "-newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2"

pytestmark = [
    pytest.mark.extended,
    pytest.mark.skipif(NGINX is None, reason="there is no nginx here: apt install nginx-light"),
    pytest.mark.skipif(OPENSSL is None, reason="there is no openssl here"),
]


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def block(language: str) -> str:
    """The only block of this language on the page."""
    (found,) = re.findall(rf"^```{language}\n(.*?)^```$", PAGE, re.M | re.S)
    return str(found)


def certificates(folder: Path) -> ssl.SSLContext:
    """A CA, and a certificate for :data:`NAME` that it has signed; trusts only that CA."""

    def openssl(words: str) -> None:
        subprocess.run([str(OPENSSL), *words.split()], cwd=folder, check=True, capture_output=True)

    openssl(f"req -x509 {KEY} -keyout ca.key -out ca.pem -subj /CN=test-ca")
    openssl(f"req {KEY} -keyout site.key -out site.csr -subj /CN={NAME}".replace("-days 2", ""))
    (folder / "names").write_text(f"subjectAltName=DNS:{NAME}\n")
    openssl(
        "x509 -req -in site.csr -CA ca.pem -CAkey ca.key -CAcreateserial -days 2"
        " -extfile names -out site.pem"
    )
    return ssl.create_default_context(cafile=str(folder / "ca.pem"))


@contextmanager
def proxied(folder: Path, site: int, server: int) -> Generator[None]:
    """Nginx with the block of the page in front of a server, until the block ends."""
    location = block("nginx").replace("127.0.0.1:7878", f"127.0.0.1:{server}")
    places = "".join(
        f"    {one}_temp_path {folder}/{one};\n"
        for one in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    )
    (folder / "nginx.conf").write_text(
        f"pid {folder}/nginx.pid;\ndaemon off;\nerror_log {folder}/error.log;\n"
        f"events {{}}\nhttp {{\n    access_log off;\n{places}    server {{\n"
        f"        listen 127.0.0.1:{site} ssl;\n        server_name {NAME};\n"
        f"        ssl_certificate {folder}/site.pem;\n"
        f"        ssl_certificate_key {folder}/site.key;\n{location}    }}\n}}\n"
    )
    words = [str(NGINX), "-p", str(folder), "-e", f"{folder}/error.log", "-c"]
    running = subprocess.Popen([*words, f"{folder}/nginx.conf"])
    try:
        yield
    finally:
        running.terminate()
        assert running.wait(PATIENCE) == 0


@attrs.frozen
class Site:
    """The site as a browser sees it: over TLS, by the name in its certificate."""

    port: int
    tls: ssl.SSLContext

    def get(self, path: str) -> tuple[int, str]:
        asked = http.client.HTTPSConnection(NAME, self.port, context=self.tls, timeout=PATIENCE)
        try:
            asked.request("GET", path)
            answer = asked.getresponse()
            return answer.status, answer.read().decode()
        finally:
            asked.close()

    def until(self, path: str, status: int) -> str:
        deadline = time.monotonic() + PATIENCE
        while True:
            found, text = self.get(path)
            if found == status:
                return text
            assert time.monotonic() < deadline, (found, text)

    @property
    def url(self) -> str:
        return f"wss://{NAME}:{self.port}"


@contextmanager
def serving(folder: Path) -> Generator[Process]:
    with started("serve", cwd=folder) as server:
        server.expect("motet serves ")
        yield server


async def answered(client: Client, text: str) -> None:
    """Say it in Alice's session, and wait for the answer."""
    sent = await client.send("alice:1", text, agent="helper")
    assert isinstance(sent, Sent)
    found = await client.call("runs.wait", run_id=sent.run_id, timeout_ms=30_000)
    assert msgspec.convert(found, RunWaited).run.status == "completed"


async def said(client: Client) -> list[str]:
    rows = (await client.history("alice:1")).rows
    return [one.row.text for one in rows if isinstance(one.row, UserMessage)]


async def stopped(server: Process) -> None:
    server.signal(signal.SIGTERM)
    assert await trio.to_thread.run_sync(server.end) == 0


async def test_a_server_is_made_saved_restored_and_restarted_behind_nginx(tmp_path: Path) -> None:
    """Given a project of ``motet init`` behind nginx with a valid certificate, when the server is
    restarted, saved and restored as the page says, then the page, the readiness and one client's
    session go on.
    """
    folder, port, site = tmp_path / "srv", free_port(), Site(free_port(), certificates(tmp_path))
    assert motet("init", str(folder), cwd=tmp_path).code == 0
    file = folder / "motet.toml"
    own = file.read_text().replace("127.0.0.1:7878", f"127.0.0.1:{port}")
    file.write_text(f'{own}trusted_proxies = ["127.0.0.1"]\n')
    assert motet("config", "check", cwd=folder).code == 0
    made = json.loads(motet("token", "new", "alice", "--json", cwd=folder).out)
    first = ["hello", "wait 1", "hello again"]
    with proxied(tmp_path, site.port, port), serving(folder) as server:
        assert site.get("/healthz/ready")[0] == 200
        status, page = site.get("/")
        assert status == 200
        assert "<title>" in page
        async with connect(site.url, token=made["token"], tls=site.tls) as client:
            await answered(client, first[0])
            # A rolling restart, while a run goes on
            async with trio.open_nursery() as nursery:
                working = await client.send("alice:1", first[1])
                assert isinstance(working, Sent)
                nursery.start_soon(stopped, server)
                told = await trio.to_thread.run_sync(site.until, "/healthz/ready", 503)
                assert json.loads(told)["status"] == "draining"
            with serving(folder) as second:
                await answered(client, first[2])
                assert await said(client) == first
                run = await client.call("runs.get", run_id=working.run_id)
                assert isinstance(run, dict)
                assert run["status"] == "completed"
                # A backup beside it, and an upgrade behind that
                assert motet("backup", str(tmp_path / "copy"), cwd=folder).code == 0
                await answered(client, "after the backup")
                await stopped(second)
            assert motet("config", "check", cwd=folder).code == 0
            with serving(folder) as upgraded:
                assert await said(client) == [*first, "after the backup"]
                await stopped(upgraded)
            # Back to the backup
            (folder / "state").rename(folder / "old")
            (tmp_path / "copy").rename(folder / "state")
            with serving(folder) as restored:
                assert await said(client) == first
                await answered(client, "and on")
                await stopped(restored)


ACTIVATED = """\
import os, sys
os.dup2(int(sys.argv[1]), 3)
os.environ |= {"LISTEN_PID": str(os.getpid()), "LISTEN_FDS": "1", "LISTEN_FDNAMES": "motet"}
os.execv(sys.executable, [sys.executable, "-m", "motet", "serve"])
"""
"""Starts a server as systemd does that has opened its socket."""


@contextmanager
def activated(folder: Path, opened: socket.socket) -> Generator[subprocess.Popen[str]]:
    words = [sys.executable, "-c", ACTIVATED, str(opened.fileno())]
    popen = subprocess.Popen(
        words,
        cwd=folder,
        env=environment(folder, None),
        pass_fds=[opened.fileno()],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        assert popen.stdout is not None
        said = ""
        while "motet serves " not in said:
            line = popen.stdout.readline()
            assert line, said
            said += line
        yield popen
        popen.send_signal(signal.SIGTERM)
        assert popen.wait(PATIENCE) == 0
    finally:
        popen.kill()
        popen.communicate()


def test_no_request_is_refused_while_a_server_is_restarted_on_a_socket_of_systemd(
    tmp_path: Path,
) -> None:
    """What comes between two servers waits in the socket, and the proxy answers no 502."""
    folder = tmp_path / "srv"
    assert motet("init", str(folder), cwd=tmp_path).code == 0
    answers: list[int] = []
    over = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as opened:
        site = Site(free_port(), certificates(tmp_path))

        def ask() -> None:
            while not over.is_set():
                answers.append(site.get("/")[0])

        with proxied(tmp_path, site.port, opened.getsockname()[1]):
            with activated(folder, opened):
                asking = threading.Thread(target=ask)
                asking.start()
                site.until("/healthz/ready", 200)
            with activated(folder, opened):
                between = len(answers)
                while len(answers) < between + 3:
                    assert asking.is_alive()
                over.set()
                asking.join(PATIENCE)
    assert set(answers) == {200}
