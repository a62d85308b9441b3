"""Replay of recorded exchanges with a kube-apiserver, with the differences of our answers."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote

from tests.apiserver.support import Answer, Client

PLACEHOLDER = re.compile(
    r"\$(?:(rv|uid|continue|gen)(\d+)|(time|microtime|age|address|port|hash|token|fingerprint|csr|certificate))"
)
FREE = {
    "time": r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ",
    "microtime": r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z",
    "age": r"\d+[smhdy]\d*[smh]?",
    "address": r"[0-9.]+",
    "port": r"\d+",
    "hash": r"[0-9A-F]+",
    "token": r".+",
    "fingerprint": r"[0-9a-f]{64}",
    "csr": r"LS0tLS1CRUdJTiBDRVJUSUZJQ0FURSBSRVFVRVNU[A-Za-z0-9+/=]+",  # -----BEGIN CERTIFICATE REQUEST
    "certificate": r"LS0tLS1CRUdJTiBDRVJUSUZJQ0FURS0t[A-Za-z0-9+/=]+",  # -----BEGIN CERTIFICATE--
}
BOUND = {"rv": r"\d+", "uid": r"[0-9a-f-]{36}", "continue": r"[A-Za-z0-9_-]+", "gen": r"[a-z0-9]{5}"}
POLL_S = 30.0  # for what the server does by itself; only a difference takes that long
AGENT = "goldens/1.0"
BACKGROUND = {"kube-apiserver", "kube-controller-manager"}


@dataclass
class Replay:
    """One file on one server; placeholders get their values as they appear."""

    client: Client
    values: dict[str, str] = field(default_factory=dict)
    hopeless: Callable[[str], object] = lambda _: False  # of an exchange: waiting for the recorded answer is no use

    def fill(self, value: Any, *, in_path: bool = False) -> Any:
        """A request with the placeholders' values."""
        if isinstance(value, dict):
            return {k: self.fill(v) for k, v in value.items() if not _is_recorded(k, v)}
        if isinstance(value, list):
            return [self.fill(v) for v in value]
        if not isinstance(value, str):
            return value

        def known(match: re.Match[str]) -> str:
            found = self.values.get(match[0], match[0])
            return quote(found) if in_path else found

        return PLACEHOLDER.sub(known, value)

    async def all(self, recorded: list[dict[str, Any]]) -> AsyncIterator[tuple[dict[str, Any], list[str]]]:
        """Each exchange with its differences, in order; watches that only wait for their end wait together."""
        waiting: list[dict[str, Any]] = []
        for exchange in recorded:
            if "during" in exchange:
                continue  # sent while its watch is open
            during = [other for other in recorded if other.get("during") == exchange["id"]]
            passive = "events" in exchange["response"] and not during
            if waiting and not (passive and "$" not in self.fill(exchange["request"]["path"])):
                for done in await self._together(waiting):
                    yield done
                waiting = []
            if passive:
                waiting.append(exchange)
            else:
                yield exchange, await self.exchange(exchange, during)
        for done in await self._together(waiting):
            yield done

    async def _together(self, watches: list[dict[str, Any]]) -> list[tuple[dict[str, Any], list[str]]]:
        answers = await asyncio.gather(*(self._send(watch["request"]) for watch in watches))
        return [(watch, self._compare_events(watch, answer)) for watch, answer in zip(watches, answers, strict=True)]

    async def exchange(self, recorded: dict[str, Any], during: list[dict[str, Any]]) -> list[str]:
        """Send one request; the differences, empty when the answer is as recorded."""
        if "events" in recorded["response"]:
            return await self._watch(recorded, during)
        request = recorded["request"]
        loop = asyncio.get_running_loop()
        end = loop.time() + (POLL_S if request["method"] == "GET" and not self.hopeless(recorded["id"]) else 0)
        while True:
            answer = await self._send(request)
            before = dict(self.values)
            differences = self._compare(recorded["response"], answer)
            if not differences or loop.time() >= end:
                return differences
            self.values = before
            await asyncio.sleep(0.05)

    async def _send(self, request: dict[str, Any]) -> Answer:
        text = request.get("bodyText")
        if "body" in request:
            text = json.dumps(strip(self.fill(request["body"])))
        return await self.client.ask(
            request["method"],
            self.fill(request["path"], in_path=True),
            headers={"User-Agent": AGENT, **request.get("headers", {})},
            data=None if text is None else self.fill(text).encode(),
        )

    async def _watch(self, recorded: dict[str, Any], during: list[dict[str, Any]]) -> list[str]:
        task = asyncio.create_task(self._send(recorded["request"]))
        differences = []
        if during:
            await asyncio.sleep(0.3)  # the watch has begun; it would report earlier changes in any case
        for other in during:
            differences += [f"{other['id']}: {d}" for d in await self.exchange(other, [])]
        return differences + self._compare_events(recorded, await task)

    def _compare_events(self, recorded: dict[str, Any], answer: Answer) -> list[str]:
        if answer.status != recorded["response"]["status"]:
            return [f"status {answer.status}, not {recorded['response']['status']}: {answer.text[:300]}"]
        events = [json.loads(line) for line in answer.text.splitlines()]
        return self.match(recorded["response"]["events"], events, "events")

    def _compare(self, expected: dict[str, Any], answer: Answer) -> list[str]:
        if answer.status != expected["status"]:
            return [f"status {answer.status}, not {expected['status']}: {answer.text[:600]}"]
        differences = []
        wanted = expected["headers"].get("Content-Type")
        if wanted and answer.headers.get("Content-Type") != wanted:
            differences.append(f"Content-Type {answer.headers.get('Content-Type')}, not {wanted}")
        warnings = expected["headers"].get("Warning", [])
        if answer.warnings != warnings:
            differences.append(f"warnings {answer.warnings}, not {warnings}")
        if expected.get("trimmed"):
            return differences
        if "body" in expected:
            return differences + self.match(expected["body"], answer.json(), "")
        if "yaml" in (wanted or ""):
            import yaml

            return differences + self.match(yaml.safe_load(expected["bodyText"]), yaml.safe_load(answer.text), "")
        return differences + self.match(expected.get("bodyText", ""), answer.text, "")

    def match(self, expected: Any, actual: Any, path: str) -> list[str]:
        """Return the paths at which `actual` differs from `expected`."""
        if isinstance(expected, dict) and isinstance(actual, dict):
            expected, actual = {self.fill(k): v for k, v in strip(expected).items()}, strip(actual)
            found = [f"{path}.{k}: missing {json.dumps(expected[k])[:200]}" for k in expected.keys() - actual.keys()]
            found += [f"{path}.{k}: unexpected {json.dumps(actual[k])[:200]}" for k in actual.keys() - expected.keys()]
            for key in expected:
                if key in actual:
                    found += self.match(expected[key], actual[key], f"{path}.{key}")
            return found
        if isinstance(expected, list) and isinstance(actual, list):
            if len(expected) != len(actual):
                return [f"{path}: {len(actual)} items, not {len(expected)}: {json.dumps(actual)[:500]}"]
            return [
                d
                for i, (e, a) in enumerate(zip(expected, actual, strict=True))
                for d in self.match(e, a, f"{path}[{i}]")
            ]
        if isinstance(expected, str) and isinstance(actual, str):
            return self._match_text(expected, actual, path)
        same = expected == actual and isinstance(expected, bool) == isinstance(actual, bool)
        return [] if same else [f"{path}: {actual!r}, not {expected!r}"]

    def _match_text(self, expected: str, actual: str, path: str) -> list[str]:
        names: list[str] = []
        pattern = ""
        at = 0
        for found in PLACEHOLDER.finditer(expected):
            pattern += re.escape(expected[at : found.start()])
            at = found.end()
            if found[3]:
                pattern += FREE[found[3]]
            elif found[0] in self.values:
                pattern += re.escape(self.values[found[0]])
            else:
                names.append(found[0])
                pattern += f"({BOUND[found[1]]})"
        match = re.fullmatch(pattern + re.escape(expected[at:]), actual, re.DOTALL)
        if match is None:
            return [f"{path}: {actual!r}, not {self.fill(expected)!r}"]
        self.values.update(zip(names, match.groups(), strict=True))
        return []


def _is_recorded(key: str, value: Any) -> bool:
    """Return whether a request has this from the recorded object, and not from ours: times, and the fields' managers
    with them.
    """
    return value == "$time" or (key == "managedFields" and any("time" in entry for entry in value))


def _owner(entry: Mapping[str, str]) -> tuple[str, ...]:
    """Sorts managedFields as the server does, but for times: what fell into one second need not do so again."""
    return tuple(entry.get(key, "") for key in ("operation", "manager", "apiVersion", "subresource"))


def _background(key: str, value: Any) -> bool:
    """Return whether a controller of a whole cluster wrote this in addition to the exchange."""
    return key == "annotations" and isinstance(value, dict) and value.keys() == {"node.alpha.kubernetes.io/ttl"}


def strip(value: Any) -> Any:
    """Without what this server leaves out on purpose; and descriptions of columns, which are its own."""
    if isinstance(value, dict):
        left_out = {"storageVersionHash"} | ({"description"} if "priority" in value else set())
        kept = {k: strip(v) for k, v in value.items() if k not in left_out and not _background(k, v)}
        if managed := kept.get("managedFields"):
            kept["managedFields"] = sorted((e for e in managed if e.get("manager") not in BACKGROUND), key=_owner)
        return kept
    if isinstance(value, list):
        return [strip(v) for v in value]
    return value
