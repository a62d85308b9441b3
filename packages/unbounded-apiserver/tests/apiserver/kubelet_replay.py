"""Replay of the recorded exchanges of a kubelet (goldens/kubelet) against the embedded server.

The recording holds real uids, versions and times; kubelet_identities.py maps them to those of the server under test
and knows which parts of an answer may differ.
"""

from __future__ import annotations

import asyncio
import base64
import json
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import aiohttp
from cryptography import x509
from multidict import CIMultiDict
from yarl import URL

from tests.apiserver.kubelet_identities import STARTED, Comparison, Identities
from tests.apiserver.support import Answer, Client, signing_request

Exchange = dict[str, Any]

INITIAL_END = "k8s.io/initial-events-end"
END = "end of the initial events"
REQUESTS = "/apis/certificates.k8s.io/v1/certificatesigningrequests"
WAIT_S = 30.0  # for what the server does by itself; only a difference takes that long
TOO_SHORT_S = 0.1
CONTENT_TYPES = {"POST": "application/json", "PUT": "application/json", "DELETE": "application/json"}


def load(recording: Path) -> list[Exchange]:
    exchanges: list[Exchange] = json.loads(recording.read_text())
    return exchanges


@dataclass
class Watch:
    """A recorded watch, and the one that is open in its place."""

    recorded: Exchange
    task: asyncio.Task[None]
    events: list[dict[str, Any]] = field(default_factory=list)
    status: int = 0
    refused: str = ""


@dataclass
class KubeletReplay:
    """One recording on one server.

    Args:
        left_out: the reason why an exchange is not sent, '' where it is sent; the state that it leads to is awaited.
        hopeless: whether an exchange has a row in the table of differences, so that waiting for it is no use.
    """

    client: Client
    left_out: Callable[[Exchange], str]
    hopeless: Callable[[Exchange], bool]
    identities: Identities = field(default_factory=Identities)
    written: set[int] = field(default_factory=set)  # recorded versions that come from exchanges that were sent
    watches: list[Watch] = field(default_factory=list)

    async def all(self, exchanges: Sequence[Exchange]) -> AsyncIterator[tuple[Exchange, list[str]]]:
        """Yield each exchange with its differences; a watch when it ends."""
        # One shift for all: two times that differ in the recording still differ, however fast the replay is.
        self.identities.later = datetime.now(UTC) - STARTED - timedelta(seconds=exchanges[-1]["t"])
        for exchange in exchanges:
            for watch in [w for w in self.watches if w.recorded["ended"]["t"] <= exchange["t"]]:
                yield watch.recorded, await self._end(watch)
            if "events" in exchange:
                await self._begin(exchange)
            else:
                yield exchange, await self._exchange(exchange)
        for watch in list(self.watches):
            yield watch.recorded, await self._end(watch)

    async def _exchange(self, exchange: Exchange) -> list[str]:
        if self.left_out(exchange):
            return await self._await_state(exchange)
        answer = await self._send(exchange)
        found = self._compare(exchange, answer)
        loop = asyncio.get_running_loop()
        end = loop.time() + WAIT_S
        while found and exchange["method"] == "GET" and not self.hopeless(exchange) and loop.time() < end:
            await asyncio.sleep(0.02)
            answer = await self._send(exchange)
            found = self._compare(exchange, answer)
        if answer.status < 300:
            self._learn(exchange, answer)
        return found

    def _learn(self, exchange: Exchange, answer: Answer) -> None:
        recorded, actual = exchange.get("response"), answer.json()
        self.identities.learn(recorded, actual)
        if exchange["method"] != "GET" and isinstance(recorded, dict):
            version = str((recorded.get("metadata") or {}).get("resourceVersion", ""))
            self.written |= {int(version)} if version.isdigit() else set()
        if exchange["client"] == "admin" and exchange["path"].endswith("/token"):
            self.identities.token = actual["status"]["token"]
        if isinstance(recorded, dict) and recorded.get("kind") == "CertificateSigningRequest":
            self.identities.requests[recorded["metadata"]["name"]] = actual["spec"]["request"]

    def _compare(self, exchange: Exchange, answer: Answer) -> list[str]:
        if answer.status != exchange["code"]:
            return [f"code {answer.status}, not {exchange['code']}: {answer.text[:500]}"]
        warnings = (exchange.get("responseHeaders") or {}).get("Warning", [])
        found = [] if answer.warnings == warnings else [f"warnings {answer.warnings}, not {warnings}"]
        recorded, actual = exchange["response"], answer.json()
        if "items" in recorded and recorded["kind"] == "CertificateSigningRequestList":
            recorded, actual = _without_pace(recorded, actual), _without_pace(actual, recorded)
        return found + Comparison(self.identities).differences(recorded, actual)

    async def _send(self, exchange: Exchange) -> Answer:
        await self._learn_version(exchange)
        media, data = self._content(exchange)
        headers = self._headers(exchange)
        if data is not None:
            headers["Content-Type"] = media
        path = self.identities.path(exchange["path"])
        return await self.client.ask(exchange["method"], path, headers=headers, data=data)

    async def _learn_version(self, exchange: Exchange) -> None:
        """Find out our version where the recorded one comes from a write that was left out, such as a heartbeat."""
        request = exchange.get("request")
        meta = request.get("metadata") if isinstance(request, dict) else None
        version = str((meta or {}).get("resourceVersion", ""))
        if exchange["method"] == "POST" or not version.isdigit() or int(version) in self.identities.versions:
            return
        path = self.identities.path(exchange["path"].partition("?")[0].removesuffix("/status"))
        answer = await self.client.ask("GET", path)
        if answer.status == 200:
            self.identities.versions[int(version)] = int(answer.json()["metadata"]["resourceVersion"])

    def _content(self, exchange: Exchange) -> tuple[str, bytes | None]:
        """Return the media type and the bytes of a body: protobuf as it was sent, where no version is in it."""
        request = exchange.get("request")
        if request is None:
            return "", None
        if "requestProtobuf" in exchange and "resourceVersion" not in json.dumps(request):
            raw = base64.b64decode(exchange["requestProtobuf"])
            for one, other in self.identities.uids.items():
                raw = raw.replace(one.encode(), other.encode())  # all uids are of one length
            return "application/vnd.kubernetes.protobuf", raw
        body = self.identities.body(request, csr=_new_csr(request))
        if isinstance(body, dict) and body.get("apiVersion") == "meta.k8s.io/__internal":
            body = {**body, "apiVersion": "v1"}
        given = exchange.get("contentType", "")
        media = given if "patch" in given else _admin_media(exchange)
        return media, json.dumps(body, separators=(",", ":")).encode()

    def _headers(self, exchange: Exchange) -> CIMultiDict[str]:
        groups = [("Impersonate-Group", group) for group in exchange["groups"] if group != "system:authenticated"]
        return CIMultiDict([("Accept", "application/json"), ("Impersonate-User", exchange["user"]), *groups])

    async def _await_state(self, exchange: Exchange) -> list[str]:
        """Wait until the server has come by itself to what the recorded write answered."""
        if exchange["method"] == "DELETE" or exchange["path"].endswith("/approval") or exchange["code"] >= 300:
            return []
        read = exchange | {"method": "GET", "client": "test", "request": None, "code": 200}
        read["path"] = exchange["path"].partition("?")[0].removesuffix("/status")
        read |= {"user": "admin", "groups": ["system:masters"]}
        return await self._exchange(read)

    async def _begin(self, exchange: Exchange) -> None:
        watch = Watch(exchange, asyncio.create_task(asyncio.sleep(0)))
        begun = asyncio.Event()
        watch.task = asyncio.create_task(self._follow(watch, begun))
        self.watches.append(watch)
        await begun.wait()

    async def _follow(self, watch: Watch, begun: asyncio.Event) -> None:
        url = URL(self.client.url + self.identities.path(watch.recorded["path"]), encoded=True)
        timeout = aiohttp.ClientTimeout(total=None)
        try:
            async with self.client.session.get(url, headers=self._headers(watch.recorded), timeout=timeout) as response:
                watch.status = response.status
                begun.set()
                if response.status != 200:
                    watch.refused = await response.text()
                async for line in response.content:
                    watch.events.append(json.loads(line))
        finally:
            begun.set()

    async def _end(self, watch: Watch) -> list[str]:
        self.watches.remove(watch)
        loop = asyncio.get_running_loop()
        end = loop.time() + (0.2 if self.hopeless(watch.recorded) else WAIT_S)
        while True:
            found = self._compare_events(watch)
            if not found or loop.time() >= end:
                break
            await asyncio.sleep(0.02)
        watch.task.cancel()
        with suppress(asyncio.CancelledError):
            await watch.task
        return found

    def _compare_events(self, watch: Watch) -> list[str]:
        if watch.status != 200:
            return [f"code {watch.status}: {watch.refused[:300]}"]
        recorded = watch.recorded
        if not recorded["events"] and recorded["ended"]["t"] - recorded["t"] < TOO_SHORT_S:
            return []  # kubelet was gone before the second watch, which was recorded, had read anything
        wanted, given = _by_object(recorded["events"]), _by_object(watch.events)
        if recorded["path"].startswith(REQUESTS):
            wanted, given = _outcomes(wanted), _outcomes(given)
        found = []
        for name in dict.fromkeys([*map(self.identities.text, wanted), *given]):
            expected = next((events for key, events in wanted.items() if self.identities.text(key) == name), [])
            found += [f"{name}: {why}" for why in self._align(expected, given.get(name, []))]
        return found

    def _align(self, recorded: list[dict[str, Any]], given: list[dict[str, Any]]) -> Iterator[str]:
        """Yield our events that are not recorded, and the recorded ones that are missing though they were caused."""
        comparison, left = Comparison(self.identities), list(recorded)
        for event in given:
            at = next((i for i, one in enumerate(left) if not _event(comparison, one, event)), None)
            if at is None:
                nearest = _event(comparison, left[0], event) if left else []
                yield f"unexpected {event['type']} {nearest or json.dumps(event['object'])[:300]}"
                continue
            yield from (f"missing {one['type']}" for one in left[:at] if self._caused(one))
            left = left[at + 1 :]
        yield from (f"missing {one['type']} {json.dumps(one['object'])[:300]}" for one in left if self._caused(one))

    def _caused(self, event: dict[str, Any]) -> bool:
        return event.get("initial", False) or int(event["object"]["metadata"]["resourceVersion"]) in self.written


def _event(comparison: Comparison, expected: dict[str, Any], actual: dict[str, Any]) -> list[str]:
    if expected["type"] != actual["type"]:
        return [f"{actual['type']}, not {expected['type']}"]
    return [] if expected["type"] == "BOOKMARK" else comparison.differences(expected["object"], actual["object"])


def _by_object(events: list[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    """Group events by object, marking those of the initial list; of bookmarks the end of that list alone counts."""
    found: dict[str, list[dict[str, Any]]] = defaultdict(list)
    ends = [
        i for i, event in enumerate(events) if INITIAL_END in (event["object"]["metadata"].get("annotations") or {})
    ]
    for index, event in enumerate(events):
        meta = event["object"]["metadata"]
        if event["type"] != "BOOKMARK":
            name = f"{meta.get('namespace', '')}/{meta['name']}"
            found[name].append(event | {"initial": bool(ends) and index < ends[0]})
        elif index in ends:
            found[END].append(event | {"initial": True})
    return dict(found)


def _without_pace(requests: Any, other: Any) -> Any:
    """Leave out the status of listed signing requests that are not issued yet, here or there."""
    pairs = zip(requests["items"], other.get("items", ()), strict=False)
    issued = all("certificate" in item["status"] for pair in pairs for item in pair)
    return requests if issued else requests | {"items": [one | {"status": {}} for one in requests["items"]]}


def _outcomes(events: dict[str, list[dict[str, Any]]]) -> dict[str, list[dict[str, Any]]]:
    """Keep what became of each signing request: how many steps a watch shows until then is a matter of pace."""
    return {name: [found[-1] | ({} if END in name else {"type": "LAST"})] for name, found in events.items()}


def _admin_media(exchange: Exchange) -> str:
    if exchange["method"] != "PATCH":
        return CONTENT_TYPES[exchange["method"]]
    return f"application/{'merge' if '/leases/' in exchange['path'] else 'strategic-merge'}-patch+json"


def _new_csr(request: Any) -> str:
    if not isinstance(request, dict) or request.get("kind") != "CertificateSigningRequest":
        return ""
    if request["spec"]["signerName"] == "kubernetes.io/kubelet-serving":
        names = [x509.DNSName("node-1"), x509.IPAddress(ip_address("192.0.2.10"))]
        pem, _ = signing_request("system:node:node-1", "system:nodes", alternative=names)
    else:
        pem, _ = signing_request("system:node:node-1", "system:nodes")
    return base64.b64encode(pem).decode()
