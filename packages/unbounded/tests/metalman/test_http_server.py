"""The HTTP server over loopback, with curl and by hand."""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import os
import shutil
import socket
import subprocess
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from email.utils import formatdate
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, generate_latest

from tests.metalman.support.fixed_boots import CFG, MODIFIED, PREFIX, FixedBoots, etag_of
from tests.support.waiting import eventually
from unbounded.api.hardware import HardwareFacts
from unbounded.metalman.http.boot_service import CloudInitEvent, HardwareReport, ProgressReport, ReportAnswer
from unbounded.metalman.http.file_sender import MinimumRate
from unbounded.metalman.http.server import LARGEST_BYTES, LARGEST_HARDWARE_BYTES, HttpServer, HttpServerSettings

LOOPBACK = HttpServerSettings("127.0.0.1", 0, least=MinimumRate(64 << 10, 0.6), idle_s=1.0, body_s=1.0)
IMAGE = os.urandom(1 << 20) * 9 + b"tail"
UNDER = f"/boot/{PREFIX}"


class Site:
    """A server, what it serves, and its metrics."""

    def __init__(self, server: HttpServer, boots: FixedBoots, registry: CollectorRegistry) -> None:
        self.server = server
        self.boots = boots
        self._registry = registry
        self.url = f"http://127.0.0.1:{server.port}"

    def metric(self, name: str, **labels: str) -> float:
        return self._registry.get_sample_value(f"unbounded_netboot_http_{name}", labels) or 0.0

    async def curl(self, *arguments: str, path: str = "") -> subprocess.CompletedProcess[bytes]:
        command = ["curl", "-sS", "-m", "30", "--path-as-is", *arguments, self.url + path]
        return await asyncio.to_thread(subprocess.run, command, capture_output=True, check=False)

    async def ask(self, request: bytes) -> bytes:
        """Send bytes, and read until the server closes the connection."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.server.port)
        try:
            writer.write(request)
            async with asyncio.timeout(20):
                with contextlib.suppress(ConnectionError):
                    return await reader.read()
            return b""
        finally:
            writer.close()

    def connected(self, source: str = "127.0.0.1", buffer_bytes: int | None = None) -> socket.socket:
        sock = socket.socket()
        if buffer_bytes is not None:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer_bytes)
        sock.bind((source, 0))
        sock.connect(("127.0.0.1", self.server.port))
        return sock


@asynccontextmanager
async def serving(folder: Path, wanted: HttpServerSettings = LOOPBACK) -> AsyncIterator[Site]:
    boots, registry = FixedBoots(folder), CollectorRegistry()
    boots.put("disk.img.gz", IMAGE)
    boots.put("shimx64.efi", b"MZ" * 1000)
    boots.put("empty", b"")
    async with HttpServer(wanted, boots, registry).serving() as server:
        yield Site(server, boots, registry)


@pytest.fixture
async def site(tmp_path: Path) -> AsyncIterator[Site]:
    async with serving(tmp_path) as site:
        yield site


def get(path: str, *fields: str, method: str = "GET", close: bool = True) -> bytes:
    lines = [f"{method} {path} HTTP/1.1", "Host: x", *fields, *(["Connection: close"] if close else [])]
    return "\r\n".join([*lines, "", ""]).encode()


def code_of(answer: bytes) -> int:
    return int(answer.split(b" ", 2)[1])


def fields_of(answer: bytes) -> dict[str, str]:
    lines = answer.partition(b"\r\n\r\n")[0].decode().split("\r\n")[1:]
    return {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}


def body_of(answer: bytes) -> bytes:
    return answer.partition(b"\r\n\r\n")[2]


@pytest.mark.slow
async def test_curl_gets_a_file_whole_and_the_rest_of_one(site: Site, tmp_path: Path) -> None:
    target = tmp_path / "got"
    assert (await site.curl("-o", str(target), path=f"{UNDER}/disk.img.gz")).returncode == 0
    assert target.read_bytes() == IMAGE
    target.write_bytes(IMAGE[:1_000_001])
    assert (await site.curl("-C", "-", "-o", str(target), path=f"{UNDER}/disk.img.gz")).returncode == 0
    assert target.read_bytes() == IMAGE
    await eventually(lambda: site.boots.told == [("served", "127.0.0.1", PREFIX, "disk.img.gz")] * 2)
    assert site.metric("requests_total", code="200") == 1
    assert site.metric("requests_total", code="206") == 1
    assert site.metric("sent_bytes_total") == 2 * len(IMAGE) - 1_000_001


async def test_an_answer_says_what_the_file_is(site: Site) -> None:
    answer = await site.ask(get("//shimx64.efi"))
    fields = fields_of(answer)
    assert code_of(answer) == 200
    assert body_of(answer) == b"MZ" * 1000
    assert fields["etag"] == f'"{etag_of(b"MZ" * 1000)}"'
    assert fields["last-modified"] == formatdate(MODIFIED, usegmt=True)
    assert (fields["content-length"], fields["content-type"]) == ("2000", "application/efi")
    assert (fields["accept-ranges"], fields["server"]) == ("bytes", "metalman")
    rendered = await site.ask(get(f"{UNDER}/grub/grub.cfg"))
    assert body_of(rendered) == CFG + b"127.0.0.1"
    assert fields_of(rendered)["etag"] == '"cfg-1"'
    assert "last-modified" not in fields_of(rendered)


@pytest.mark.slow
async def test_head_says_the_same_and_sends_and_tells_nothing(site: Site) -> None:
    for path in ("/disk.img.gz", "/grub/grub.cfg", "/empty"):
        got, headed = await site.ask(get(path)), await site.ask(get(path, method="HEAD"))
        assert body_of(headed) == b""
        assert {**fields_of(got), "date": ""} == {**fields_of(headed), "date": ""}
    await eventually(lambda: len(site.boots.told) == 3)
    assert site.metric("sent_bytes_total") == len(IMAGE)
    assert (await site.curl("-I", path="/disk.img.gz")).stdout.startswith(b"HTTP/1.1 200 OK")


@pytest.mark.parametrize(
    ("range", "code", "start", "stop"),
    [
        ("bytes=5-9", 206, 5, 10),
        ("bytes=-4", 206, len(IMAGE) - 4, len(IMAGE)),
        ("bytes=9000000-", 206, 9_000_000, len(IMAGE)),
        ("bytes=0-1,4-5", 200, 0, len(IMAGE)),
        (f"bytes={len(IMAGE)}-", 416, 0, 0),
    ],
)
async def test_ranges(site: Site, range: str, code: int, start: int, stop: int) -> None:
    answer = await site.ask(get("/disk.img.gz", f"Range: {range}"))
    assert code_of(answer) == code
    assert body_of(answer) == IMAGE[start:stop]
    said = {206: f"bytes {start}-{stop - 1}/{len(IMAGE)}", 416: f"bytes */{len(IMAGE)}"}.get(code)
    assert fields_of(answer).get("content-range") == said
    if stop == len(IMAGE):
        await eventually(lambda: site.boots.told)
    else:
        assert site.boots.told == []


async def test_a_range_of_a_rendered_text(site: Site) -> None:
    answer = await site.ask(get("/grub/grub.cfg", "Range: bytes=4-10", 'If-Range: "cfg-1"'))
    assert (code_of(answer), body_of(answer)) == (206, CFG[4:11])


async def test_what_the_client_has_is_not_sent_again(site: Site) -> None:
    tag = etag_of(IMAGE)
    for field, code in [
        (f'If-None-Match: "x", W/"{tag}"', 304),
        (f"If-Modified-Since: {formatdate(MODIFIED, usegmt=True)}", 304),
        ('If-Match: "other"', 412),
    ]:
        answer = await site.ask(get("/disk.img.gz", field))
        assert (code_of(answer), body_of(answer)) == (code, b"")
        assert fields_of(answer)["etag"] == f'"{tag}"'
    assert site.boots.told == []


@pytest.mark.slow
async def test_one_connection_serves_many_requests(site: Site) -> None:
    paths = ("/shimx64.efi", "/disk.img.gz", "/nothing", "/grub/grub.cfg")
    each = [argument for path in paths for argument in ("-o", "/dev/null", site.url + path)]
    command = ["curl", "-sS", "-m", "30", "-w", "%{num_connects} %{http_code}\n", *each]
    done = await asyncio.to_thread(subprocess.run, command, capture_output=True, check=True)
    assert done.stdout.decode().split("\n") == ["1 200", "0 200", "0 404", "0 200", ""]
    old = await site.ask(b"GET /shimx64.efi HTTP/1.0\r\n\r\n")
    assert body_of(old) == b"MZ" * 1000
    pipelined = await site.ask(get("/disk.img.gz", close=False) + get("/shimx64.efi"))
    assert pipelined.count(b"HTTP/1.1 200 OK") == 2
    assert pipelined.endswith(b"\r\n\r\n" + b"MZ" * 1000)
    assert IMAGE in pipelined


async def test_all_that_is_not_there_looks_alike(site: Site) -> None:
    answers = []
    for path in ("/nothing", "/", f"{UNDER}/nothing", "/%2e%2e/x", "/../x", "/a%00", "/attest", "http://x/y"):
        answer = await site.ask(get(path))
        answers.append((code_of(answer), body_of(answer), {**fields_of(answer), "date": ""}))
    assert answers[0][:2] == (404, b"not found\n")
    assert all(answer == answers[0] for answer in answers)


async def test_other_refusals_say_why_and_what_is_pulled_comes_later(site: Site) -> None:
    assert body_of(await site.ask(get("/contested"))) == b"this boot is contested\n"
    answer = await site.ask(get("/pulling"))
    assert (code_of(answer), fields_of(answer)["retry-after"]) == (503, "1")
    vanished = await site.ask(get("/vanished"))
    assert (code_of(vanished), fields_of(vanished)["retry-after"]) == (503, "5")


@pytest.mark.slow
async def test_curl_waits_for_a_file_as_it_is_told_to(site: Site) -> None:
    waiting = asyncio.create_task(site.curl("--retry", "5", path="/pulling"))
    await eventually(lambda: site.metric("requests_total", code="503") == 1)
    site.boots.put("pulling", b"here")
    assert (await waiting).stdout == b"the image is being pulled\nhere"


async def test_our_bug_is_a_500_for_one_request_and_nobody_else(site: Site) -> None:
    answer = await site.ask(get("/broken", close=False) + get("/shimx64.efi"))
    assert code_of(answer) == 500
    assert b"ZeroDivision" not in answer
    assert answer.endswith(b"MZ" * 1000)
    assert site.server.counts["failed"] == 1


@pytest.mark.slow
async def test_a_report_is_passed_on_and_its_outcome_is_the_answer(site: Site) -> None:
    site.boots.outcome = ReportAnswer(503, {"error": "try again"}, 4)
    answer = await site.ask(b"POST %s/attest HTTP/1.0\r\nContent-Length: 3\r\n\r\nabc" % UNDER.encode())
    assert (code_of(answer), body_of(answer)) == (503, b'{"error":"try again"}')
    assert fields_of(answer)["retry-after"] == "4"
    site.boots.outcome = ReportAnswer(200, {})
    posts: dict[str, str] = {
        "/attest": '{"ekPub":"AAA="}',
        "/pxe/disable": "",
        "/cloudinit/log": '{"name":"modules-final","event_type":"finish","result":"SUCCESS"}',
        "/progress": '{"stage":"write","percent":3}',
        "/hardware": '{"final":true,"hardware":{"cpus":4,"later":[]}}',
    }
    for path, body in posts.items():
        done = await site.curl("-w", "%{http_code}", "-d", body, path=UNDER + path)
        assert done.stdout == b"{}200", done
    finished = CloudInitEvent(name="modules-final", event_type="finish", result="SUCCESS")
    assert site.boots.told == [
        ("attest", "127.0.0.1", PREFIX, b"abc"),
        ("attest", "127.0.0.1", PREFIX, b'{"ekPub":"AAA="}'),
        ("disable", "127.0.0.1", PREFIX),
        ("cloud-init", "127.0.0.1", PREFIX, finished),
        ("progress", "127.0.0.1", PREFIX, ProgressReport(stage="write", percent=3)),
        ("hardware", "127.0.0.1", PREFIX, HardwareReport(final=True, hardware=HardwareFacts(cpus=4))),
    ]


@pytest.mark.slow
async def test_reports_are_posted_under_a_prefix_and_files_are_not(site: Site) -> None:
    for path in ("/attest", "/pxe/disable", "/cloudinit/log", "/progress", "/hardware"):
        answer = await site.ask(get(UNDER + path))
        assert (code_of(answer), fields_of(answer)["allow"]) == (405, "POST")
    answer = await site.ask(get("/attest", "Content-Length: 0", method="POST"))
    assert (code_of(answer), fields_of(answer)["allow"]) == (405, "GET, HEAD")
    for method in ("PUT", "DELETE", "OPTIONS", "TRACE", "PATCH", "BREW"):
        assert code_of(await site.ask(get("/disk.img.gz", method=method))) in (400, 405)
    assert site.boots.told == []


@pytest.mark.slow
async def test_bodies_that_cannot_be_read(site: Site) -> None:
    async def post(path: str, *fields: str, body: bytes = b"") -> int:
        return code_of(await site.ask(get(UNDER + path, *fields, method="POST") + body))

    assert await post("/cloudinit/log", "Content-Length: 4", body=b"junk") == 200
    assert await post("/progress", "Content-Length: 4", body=b"junk") == 400
    wrong = b'{"hardware":{"disks":[{"name":"sda","sizeBytes":"1"}]}}'
    answer = await site.ask(get(f"{UNDER}/hardware", f"Content-Length: {len(wrong)}", method="POST") + wrong)
    assert code_of(answer) == 400
    assert b"$.hardware.disks[0].sizeBytes" in answer
    assert await post("/hardware", f"Content-Length: {LARGEST_HARDWARE_BYTES + 1}") == 413
    assert await post("/attest", "Transfer-Encoding: chunked", body=b"zz\r\nabc\r\n") == 400
    assert await post("/attest", f"Content-Length: {LARGEST_BYTES + 1}") == 413
    assert await post("/attest", "Content-Length: 5", "Content-Encoding: gzip", body=b"12345") == 415
    assert await post("/attest", "Content-Length: 5", body=b"123") == 408  # the rest never comes
    chunk = b"10000\r\n" + b"x" * 0x10000 + b"\r\n"
    assert await post("/attest", "Transfer-Encoding: chunked", body=chunk * 17 + b"0\r\n\r\n") == 413
    assert site.boots.told == []
    assert await post("/attest", "Transfer-Encoding: chunked", body=chunk * 16 + b"0\r\n\r\n") == 200
    large = await site.curl("-H", "Expect: 100-continue", "-d", "x" * 3000, path=f"{UNDER}/attest")
    assert large.stdout == b'{"ok":true}'
    assert [len(str(told[3])) for told in site.boots.told] == [LARGEST_BYTES + 3, 3003]


@pytest.mark.slow
async def test_only_a_trusted_proxy_says_who_the_client_is(tmp_path: Path) -> None:
    trusting = replace(LOOPBACK, trusted_proxies=(ipaddress.ip_network("127.0.0.1/32"),))
    for wanted, client in ((LOOPBACK, "127.0.0.1"), (trusting, "10.0.0.7")):
        async with serving(tmp_path, wanted) as site:
            answer = await site.ask(get("/grub/grub.cfg", "X-Forwarded-For: 6.6.6.6, 10.0.0.7"))
            assert body_of(answer) == CFG + client.encode()


PROXY = """\
daemon off; master_process off; pid {folder}/nginx.pid; error_log {folder}/nginx.log; events {{ }}
http {{
  access_log off; client_body_temp_path {folder}/t1; proxy_temp_path {folder}/t2; fastcgi_temp_path {folder}/t3;
  uwsgi_temp_path {folder}/t4; scgi_temp_path {folder}/t5;
  server {{
    listen 127.0.0.1:{port};
    location / {{
      proxy_pass {url}; proxy_http_version 1.1; proxy_buffering off;
      proxy_set_header X-Forwarded-For $proxy_add_x_forwarded_for;
    }}
  }}
}}
"""


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("nginx") is None, reason="needs nginx; scripts/bench-tools gets it")
async def test_client_address_comes_from_the_trusted_proxy_and_not_the_client(tmp_path: Path) -> None:
    trusting = replace(LOOPBACK, trusted_proxies=(ipaddress.ip_network("127.0.0.1/32"),))
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    async with serving(tmp_path, trusting) as site:
        (tmp_path / "nginx.conf").write_text(PROXY.format(folder=tmp_path, port=port, url=site.url))
        proxy = await asyncio.create_subprocess_exec("nginx", "-c", str(tmp_path / "nginx.conf"))
        try:
            await eventually(lambda: _listens(port))
            asked = [
                "curl",
                "-sS",
                "-m",
                "20",
                "--interface",
                "127.0.0.9",
                "-H",
                "X-Forwarded-For: 127.0.0.1, 10.0.0.7",
            ]
            found = await asyncio.to_thread(
                subprocess.run, [*asked, f"http://127.0.0.1:{port}/grub/grub.cfg"], capture_output=True, check=True
            )
            assert found.stdout == CFG + b"127.0.0.9"
            whole = await asyncio.to_thread(
                subprocess.run, [*asked, f"http://127.0.0.1:{port}/disk.img.gz"], capture_output=True, check=True
            )
            assert whole.stdout == IMAGE
            await eventually(lambda: ("served", "127.0.0.9", None, "disk.img.gz") in site.boots.told)
        finally:
            proxy.terminate()
            await proxy.wait()


def _listens(port: int) -> bool:
    with socket.socket() as sock:
        return sock.connect_ex(("127.0.0.1", port)) == 0


@pytest.mark.slow
async def test_a_client_that_sends_its_request_too_slowly_is_cut_off(site: Site) -> None:
    """Each byte comes in time; the request as a whole does not."""
    reader, writer = await asyncio.open_connection("127.0.0.1", site.server.port)

    async def drip() -> None:
        for byte in get("/shimx64.efi") * 100:
            writer.write(bytes((byte,)))
            await writer.drain()
            await asyncio.sleep(0.05)

    dripping = asyncio.create_task(drip())
    with contextlib.suppress(ConnectionError):
        async with asyncio.timeout(30):
            assert await reader.read() == b""
    dripping.cancel()
    await eventually(lambda: site.metric("open_connections") == 0)
    writer.close()


@pytest.mark.slow
async def test_a_client_that_stops_reading_is_cut_off_and_others_go_on(site: Site) -> None:
    site.boots.put("huge", IMAGE * 4)
    with site.connected("127.0.0.2", buffer_bytes=4096) as stalled:
        stalled.sendall(get("/huge"))
        await eventually(lambda: site.metric("open_transfers") == 1)
        assert len(body_of(await site.ask(get("/disk.img.gz")))) == len(IMAGE)
        await eventually(lambda: site.metric("cut_total", reason="the client took too little") == 1)
        await eventually(lambda: site.metric("open_connections") == 0)
    assert ("served", "127.0.0.2", None, "huge") not in site.boots.told


@pytest.mark.slow
async def test_a_client_that_goes_away_leaves_nothing_behind(site: Site) -> None:
    site.boots.put("huge", IMAGE * 4)
    files = len(os.listdir("/proc/self/fd"))
    for _ in range(5):
        with site.connected(buffer_bytes=4096) as gone:
            gone.sendall(get("/huge"))
            await eventually(lambda: site.metric("open_transfers") == 1)
        await eventually(lambda: site.metric("open_transfers") == 0)
    await eventually(lambda: len(os.listdir("/proc/self/fd")) <= files)  # what an earlier test left may go meanwhile
    assert site.metric("cut_total", reason="the client has gone") == 5


@pytest.mark.slow
async def test_a_file_that_becomes_shorter_is_cut_off(site: Site) -> None:
    site.boots.put("huge", IMAGE * 4)
    with site.connected(buffer_bytes=4096) as reading:
        reading.setblocking(False)
        await asyncio.get_running_loop().sock_sendall(reading, get("/huge"))
        await eventually(lambda: site.metric("open_transfers") == 1)
        os.truncate(site.boots.folder / "huge", 10)
        got = 0
        with contextlib.suppress(ConnectionError):
            async with asyncio.timeout(30):
                while chunk := await asyncio.get_running_loop().sock_recv(reading, 1 << 20):
                    got += len(chunk)
        assert got < 4 * len(IMAGE)
    await eventually(lambda: site.metric("open_transfers") == 0)
    assert site.boots.told == []


@pytest.mark.slow
async def test_connections_are_bounded_for_each_client_and_for_all(tmp_path: Path) -> None:
    wanted = replace(LOOPBACK, most_connections=10, most_connections_of_one=4, idle_s=20.0)
    async with serving(tmp_path, wanted) as site:
        with contextlib.ExitStack() as stack:
            for source in ("127.0.0.2", "127.0.0.3"):
                for _ in range(8):
                    stack.enter_context(site.connected(source))
                await eventually(lambda: site.server.counts.get("too many connections of one client", 0) >= 4)
            await eventually(lambda: site.server.counts["too many connections of one client"] == 8)
            assert site.metric("open_connections") == 8
            assert len(body_of(await site.ask(get("/disk.img.gz")))) == len(IMAGE)
            for _ in range(3):
                stack.enter_context(site.connected("127.0.0.4"))
            await eventually(lambda: site.server.counts.get("too many connections", 0) == 1)
            assert site.metric("open_connections") == 10
        await eventually(lambda: site.metric("open_connections") == 0)
        assert len(body_of(await site.ask(get("/disk.img.gz")))) == len(IMAGE)


@pytest.mark.slow
async def test_the_end_of_the_server_ends_what_runs(tmp_path: Path) -> None:
    async with serving(tmp_path) as site:
        site.boots.put("huge", IMAGE * 4)
        reading = [site.connected(buffer_bytes=4096) for _ in range(8)]  # two have a place, six wait for one
        for sock in reading:
            sock.sendall(get("/huge"))
        await eventually(lambda: site.metric("open_transfers") == 2 and site.metric("open_connections") == 8)
        started = asyncio.get_running_loop().time()
    assert asyncio.get_running_loop().time() - started < 2.0
    for sock in reading:
        sock.close()


@pytest.mark.slow
async def test_a_bug_in_sending_is_told_and_hangs_nobody(tmp_path: Path) -> None:
    no_number: Any = "many"  # the sending thread fails on it at its first check of a client that reads nothing
    async with serving(tmp_path, replace(LOOPBACK, least=MinimumRate(no_number))) as site:
        assert site.server.check() is None
        site.boots.put("huge", IMAGE * 4)
        with site.connected(buffer_bytes=4096) as reads_nothing:
            reads_nothing.sendall(get("/huge"))
            await eventually(lambda: site.server.check() == "cannot send files")
        assert body_of(await site.ask(get("/disk.img.gz"))) == b""
        assert body_of(await site.ask(get("/grub/grub.cfg"))) == CFG + b"127.0.0.1"


async def test_metrics_name_no_client(site: Site) -> None:
    await site.ask(get("/disk.img.gz"))
    await site.ask(get("/nothing"))
    text = generate_latest(site._registry).decode()
    assert 'unbounded_netboot_http_requests_total{code="404"} 1.0' in text
    assert "127.0.0" not in text
    assert "disk" not in text


WORDS = ["GET ", "POST ", "HEAD ", "/", "/disk.img.gz", UNDER, "/attest", "/progress", "..", "%2e%2e", "%00", "\0", " "]
WORDS += [
    "HTTP/1.1",
    "HTTP/1.0",
    "HTTP/9",
    "\r\n",
    "\n",
    "Host: x",
    "Range: bytes=",
    "5-",
    "Content-Length: ",
    "9" * 30,
]
WORDS += [
    "Transfer-Encoding: chunked",
    "If-Range: ",
    '"',
    "http://x",
    "*",
    "\xff",
    "Expect: 100-continue",
    "Upgrade: h2c",
]


@pytest.mark.slow
async def test_whatever_is_sent_the_server_says_no_and_goes_on(site: Site) -> None:
    loop = asyncio.get_running_loop()
    requests = st.lists(st.sampled_from(WORDS) | st.text(max_size=6), max_size=14).map("".join)
    framed = st.builds(lambda path, rest: f"GET {path} HTTP/1.1\r\n{rest}\r\n\r\n", requests, requests)

    async def tried(request: str) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", site.server.port)
        with contextlib.suppress(ConnectionError):
            writer.write(request.encode("latin-1", "replace") + get("/shimx64.efi"))
            writer.write_eof()
            async with asyncio.timeout(30):
                answer = await reader.read()
            if answer:
                assert code_of(answer) in (100, 200, 206, 304, 400, 404, 405, 408, 412, 413, 415, 416), answer[:300]
        writer.close()

    def run(check: Callable[[str], object]) -> None:
        @settings(suppress_health_check=list(HealthCheck), deadline=None)
        @given(requests | framed)
        def every(request: str) -> None:
            check(request)

        every()

    await asyncio.to_thread(run, lambda request: asyncio.run_coroutine_threadsafe(tried(request), loop).result(60))
    assert code_of(await site.ask(get("/shimx64.efi"))) == 200
    assert site.server.counts.get("failed", 0) == 0
