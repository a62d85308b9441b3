"""A child process that loads an API server: many clients over TLS, each with one open request.

It has to cost less than the server. So it has one thread and non-blocking sockets, and encodes requests before the
clock starts. It reads jobs, as lines of JSON, from its standard input, and answers each with a report.
"""

from __future__ import annotations

import re
import select
import socket
import ssl
import sys
import time
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import msgspec

from benchmarks.frame import percentile
from unbounded.kube.config import from_kubeconfig
from unbounded.kube.credentials import StaticCredentials
from unbounded.kube.tls import client_context

READ_BYTES: Final = 256 * 1024
CONNECT_S: Final = 20.0
SILENCE_S: Final = 60.0  # a server without an answer for so long has failed
LENGTH: Final = re.compile(rb"\r\ncontent-length: *(\d+)\r\n", re.IGNORECASE)
CHUNKED: Final = re.compile(rb"\r\ntransfer-encoding: *chunked\r\n", re.IGNORECASE)
LAST_CHUNK: Final = b"\r\n0\r\n\r\n"
HEAD_END: Final = b"\r\n\r\n"
SERIAL: Final = re.compile(rb'"serial":(\d+)')


class Job(msgspec.Struct, kw_only=True):
    """Requests to send as fast as the clients can; each client waits for its answer.

    In `path` and `body`, `#` stands for the number of an object, from 0 up to `objects`, and `@` for the number of the
    request, from `first` on.
    """

    kubeconfig: str
    port: int = 0  # 0: that of the kubeconfig
    clients: int
    requests: int
    method: str = "GET"
    path: str
    body: str = ""
    media: str = "application/json"
    objects: int = 1
    first: int = 0


class Watching(msgspec.Struct, kw_only=True):
    """Watches of `path`, and one client that sends the requests of `job`, `pause_s` apart.

    `"serial":N` in an event is the number of its request.
    """

    job: Job
    watches: int
    path: str
    pause_s: float


class Holding(msgspec.Struct, kw_only=True):
    """Watches that stay open until this process ends; `#` in their path is the number of an object."""

    kubeconfig: str
    watches: int
    hold: str
    objects: int = 1


class Report(msgspec.Struct, kw_only=True):
    """Result of a job: requests `per_s`, percentiles of their times, and `codes` of the answers."""

    seconds: float
    per_s: float
    p50_ms: float
    p99_ms: float
    codes: dict[int, int] = {}
    cpu_s: float = 0.0
    answer_bytes: int = 0


class Broken(Exception):
    """The server closed a connection, or was silent, before the end of an answer."""


class Client:
    """One connection, and the answer in receipt."""

    def __init__(self, address: tuple[str, int], context: ssl.SSLContext) -> None:
        plain = socket.create_connection(address, CONNECT_S)
        plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.socket = context.wrap_socket(plain, server_hostname=address[0])
        self.socket.setblocking(False)
        self.sent_at = 0.0
        self._parts: list[bytes] = []
        self._missing = 0
        self._code = 0
        self._chunked, self._end = False, b""  # the last bytes so far; JSON does not contain this end

    def send(self, request: bytes) -> None:
        self._parts, self._missing, self._code = [], 0, 0
        self._chunked, self._end = False, b""
        self.sent_at = time.perf_counter()
        self.socket.sendall(request)  # only one request is open, so the buffer has room

    def chunk(self) -> bytes:
        """Return the received bytes; empty if there are none yet."""
        try:
            data = self.socket.recv(READ_BYTES)
        except ssl.SSLWantReadError:
            return b""
        if not data:
            raise Broken("the server closed a connection")
        return data

    def answer(self) -> int:
        """Return the status of the answer when it is complete, else 0."""
        while data := self.chunk():
            if not self._code:
                self._parts.append(data)
                data = b"".join(self._parts)
                self._begin(data)
            elif not self._chunked:
                self._missing -= len(data)
            if self._chunked:
                self._end = (self._end + data)[-len(LAST_CHUNK) :]
                self._missing = self._end != LAST_CHUNK
            if self._code and self._missing <= 0:
                return self._code
        return 0

    def _begin(self, data: bytes) -> None:
        end = data.find(HEAD_END)
        if end < 0:
            return
        length = LENGTH.search(data, 0, end + 2)
        self._chunked = length is None and CHUNKED.search(data, 0, end + 2) is not None
        if self._chunked:
            self._code, self.length = int(data[9:12]), 0
            return
        if length is None:
            raise Broken(f"no Content-Length: {data[:end].decode(errors='replace')}")
        self._code = int(data[9:12])
        self._missing = int(length[1]) - (len(data) - end - len(HEAD_END))
        self.length = int(length[1])


class Target:
    """The server of a kubeconfig; `port` selects another server with the same address and certificates."""

    def __init__(self, kubeconfig: str, port: int = 0) -> None:
        config = from_kubeconfig(Path(kubeconfig))
        url = urlsplit(config.server)
        self.address = (url.hostname or "", port or url.port or 443)
        login = config.credentials.value if isinstance(config.credentials, StaticCredentials) else None
        self._certificate = login.certificate if login else None
        self._token = login.token if login else None
        self._context = client_context(ca=config.ca, certificate=self._certificate)

    def connect(self) -> Client:
        return Client(self.address, self._context)

    def request(self, method: str, path: str, body: bytes = b"", media: str = "") -> bytes:
        """Encode one request."""
        lines = [f"{method} {path} HTTP/1.1", f"Host: {self.address[0]}:{self.address[1]}", "Accept: application/json"]
        lines += ["User-Agent: benchmark"]
        if self._token:
            lines.append(f"Authorization: Bearer {self._token}")
        if body:
            lines += [f"Content-Type: {media}", f"Content-Length: {len(body)}"]
        return "\r\n".join([*lines, "", ""]).encode() + body


@contextmanager
def _connected(target: Target, count: int) -> Iterator[tuple[dict[int, Client], select.epoll]]:
    clients: dict[int, Client] = {}
    poll = select.epoll()
    try:
        for _ in range(count):
            client = target.connect()
            clients[client.socket.fileno()] = client
            poll.register(client.socket.fileno(), select.EPOLLIN)
        yield clients, poll
    finally:
        poll.close()
        for client in clients.values():
            client.socket.close()


def _requests(target: Target, job: Job) -> list[bytes]:
    def filled(text: str, number: int) -> str:
        return text.replace("#", str(number % job.objects)).replace("@", str(number))

    return [
        target.request(job.method, filled(job.path, number), filled(job.body, number).encode(), job.media)
        for number in range(job.first, job.first + job.requests)
    ]


def run(job: Job) -> Report:
    """Send all requests. Raises Broken."""
    target = Target(job.kubeconfig, job.port)
    waiting = deque(_requests(target, job))
    times: list[float] = []
    codes: Counter[int] = Counter()
    length = 0
    with _connected(target, min(job.clients, job.requests)) as (clients, poll):
        began, cpu = time.perf_counter(), time.process_time()
        for client in clients.values():
            client.send(waiting.popleft())
        while len(times) < job.requests:
            ready = poll.poll(SILENCE_S)
            if not ready:
                raise Broken(f"no answer for {SILENCE_S:.0f} s")
            for number, _ in ready:
                client = clients[number]
                if code := client.answer():
                    times.append(time.perf_counter() - client.sent_at)
                    codes[code] += 1
                    length = client.length
                    if waiting:
                        client.send(waiting.popleft())
        return _report(time.perf_counter() - began, times, codes, time.process_time() - cpu, length)


def watch(watching: Watching) -> Report:
    """Measure the times from the sending of a write until each watch has reported it. Raises Broken."""
    target = Target(watching.job.kubeconfig)
    requests = _requests(target, watching.job)
    with _connected(target, watching.watches) as (clients, poll), _connected(target, 1) as (writers, answers):
        for client in clients.values():
            client.send(target.request("GET", watching.path))
        _await_heads(clients, poll)
        writer = next(iter(writers.values()))
        began, cpu = time.perf_counter(), time.process_time()
        times: list[float] = []
        codes: Counter[int] = Counter()
        for number, request in enumerate(requests, watching.job.first):
            writer.send(request)
            times += _event_times(clients, poll, number, writer.sent_at)
            while not (code := writer.answer()):
                answers.poll(SILENCE_S)
            codes[code] += 1
            time.sleep(watching.pause_s)
        return _report(time.perf_counter() - began, times, codes, time.process_time() - cpu, 0)


def hold(holding: Holding, stack: ExitStack) -> Report:
    """Open watches, which the stack closes. Raises Broken."""
    target = Target(holding.kubeconfig)
    began, cpu = time.perf_counter(), time.process_time()
    clients, poll = stack.enter_context(_connected(target, holding.watches))
    for number, client in enumerate(clients.values()):
        path = holding.hold.replace("#", str(number % holding.objects))
        client.send(target.request("GET", path))
    _await_heads(clients, poll)
    seconds = time.perf_counter() - began
    return _report(seconds, [seconds], Counter({200: holding.watches}), time.process_time() - cpu, 0)


def _await_heads(clients: dict[int, Client], poll: select.epoll) -> None:
    """Wait until every watch has received its first bytes."""
    silent = set(clients)
    while silent:
        ready = poll.poll(SILENCE_S)
        if not ready:
            raise Broken("a watch did not begin")
        for number, _ in ready:
            if clients[number].chunk():
                silent.discard(number)


def _event_times(clients: dict[int, Client], poll: select.epoll, serial: int, sent_at: float) -> list[float]:
    """Return the seconds until each watch has reported the write with this serial."""
    times: list[float] = []
    text: dict[int, bytes] = {}
    while len(times) < len(clients):
        ready = poll.poll(SILENCE_S)
        if not ready:
            raise Broken(f"{len(clients) - len(times)} watches did not report a write")
        for number, _ in ready:
            text[number] = text.get(number, b"") + clients[number].chunk()
            if any(int(found) == serial for found in SERIAL.findall(text[number])):
                times.append(time.perf_counter() - sent_at)
                text[number] = b""
    return times


def _report(seconds: float, times: Sequence[float], codes: Counter[int], cpu_s: float, length: int) -> Report:
    return Report(
        seconds=seconds,
        per_s=sum(codes.values()) / seconds,
        p50_ms=1000 * percentile(times, 0.5),
        p99_ms=1000 * percentile(times, 0.99),
        codes=dict(codes),
        cpu_s=cpu_s,
        answer_bytes=length,
    )


def carry_out(line: bytes, stack: ExitStack) -> Report:
    """Carry out the job in a line of input."""
    fields = msgspec.json.decode(line, type=dict[str, msgspec.Raw])
    if "hold" in fields:
        return hold(msgspec.json.decode(line, type=Holding), stack)
    if "job" in fields:
        return watch(msgspec.json.decode(line, type=Watching))
    return run(msgspec.json.decode(line, type=Job))


def main() -> None:
    """Carry out jobs until the input ends."""
    sys.stdout.buffer.write(b"{}\n")
    sys.stdout.buffer.flush()
    with ExitStack() as stack:
        for line in sys.stdin.buffer:
            sys.stdout.buffer.write(msgspec.json.encode(carry_out(line, stack)) + b"\n")
            sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
