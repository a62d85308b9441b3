"""Record how a running kube-apiserver answers requests about the definitions of the project.

The recording has the requests too: to add one, add it without its response. A test sends all of them to the embedded
API server. scripts/kubernetes-checks/README.md says which server to run.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import json
import re
import ssl
import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any, Final

import aiohttp
import yaml

ROOT: Final = Path(__file__).parent.parent
RECORDING: Final = ROOT / "tests" / "goldens" / "custom-resources.json"
DEFINITIONS: Final = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
AGENT: Final = "goldens/1.0"
LIMIT_S: Final = 60
AGE: Final = re.compile(r"\d+[smhd]\d*[smh]?|<invalid>")
TIMES: Final = frozenset({"creationTimestamp", "deletionTimestamp", "time"})
Json = Any


def definitions() -> list[Json]:
    """Return the generated definitions of the project without descriptions."""
    found = []
    for path in sorted((ROOT / "deploy" / "crd").rglob("*_*.yaml")):
        body = yaml.safe_load(path.read_text())
        found.append(bare(body))
    return found


def bare(value: Json) -> Json:
    """Return a definition without the descriptions of its fields."""
    if isinstance(value, dict):
        return {key: bare(inner) for key, inner in value.items() if key != "description" or not isinstance(inner, str)}
    return [bare(inner) for inner in value] if isinstance(value, list) else value


class Placeholders:
    """Names for what differs from one run to the next; equal values have equal names, but for lists."""

    def __init__(self) -> None:
        self._names: dict[tuple[str, str], str] = {}

    def put(self, value: Json, place: str = "") -> Json:
        """Return an answer with names in place of such values.

        Args:
            place: what the value tells about: list, object, or neither.
        """
        if isinstance(value, list):
            return [self.put(inner) for inner in value]
        if not isinstance(value, dict):
            return value
        owner = "list" if "items" in value or "rows" in value else "object"
        return {key: self._member(key, inner, owner, place) for key, inner in value.items()}

    def _member(self, key: str, value: Json, owner: str, place: str) -> Json:
        if isinstance(value, str):
            if key in TIMES and value:
                return "$time"
            if key in {"uid", "resourceVersion"} and place:
                kind = "uid" if key == "uid" else "rv"
                return self._name(kind, f"{len(self._names)} of a list" if place == "list" else value)
            return value
        if key == "cells":
            return ["$age" if isinstance(cell, str) and AGE.fullmatch(cell) else cell for cell in value]
        places = {"metadata": owner, "details": "object"}
        return self.put(value, places.get(key, ""))

    def _name(self, kind: str, value: str) -> str:
        count = sum(one == kind for one, _ in self._names)
        return self._names.setdefault((kind, value), f"${kind}{count + 1}")


def administrator(kubeconfig: Path) -> ssl.SSLContext:
    """Return TLS with the administrator's certificate."""
    config = yaml.safe_load(kubeconfig.read_text())
    cluster, user = config["clusters"][0]["cluster"], config["users"][0]["user"]
    authority = base64.b64decode(cluster["certificate-authority-data"]).decode()
    context = ssl.create_default_context(cadata=authority)
    with NamedTemporaryFile() as chain:
        chain.write(b"\n".join(base64.b64decode(user[f"client-{part}-data"]) for part in ("certificate", "key")))
        chain.flush()
        context.load_cert_chain(chain.name)
    return context


class Recorder:
    """Requests to the server, and its answers."""

    def __init__(self, session: aiohttp.ClientSession, url: str) -> None:
        self._session = session
        self._url = url
        self._placeholders = Placeholders()

    async def ask(self, method: str, path: str, text: str | None, headers: dict[str, str]) -> aiohttp.ClientResponse:
        sent = {"User-Agent": AGENT, "Content-Type": "application/json", **headers}
        response = await self._session.request(method, self._url + path, data=text, headers=sent)
        await response.read()
        return response

    async def define(self, bodies: list[Json]) -> None:
        """Create the definitions, and wait until they are served. Those of an earlier run are removed."""
        for body in bodies:
            path = f"{DEFINITIONS}/{body['metadata']['name']}"
            await self.ask("DELETE", path, None, {})
            await self._until(path, lambda status, _found: status == 404)
            answer = await self.ask("POST", DEFINITIONS, json.dumps(body), {})
            if answer.status != 201:
                raise SystemExit(await answer.text())
            await self._until(path, lambda _status, found: {"Established"} <= _true(found))
        for body in bodies:
            spec = body["spec"]
            served = f"/apis/{spec['group']}/{spec['versions'][0]['name']}/{spec['names']['plural']}"
            await self._until(served, lambda status, _found: status == 200)

    async def _until(self, path: str, reached: Any) -> None:
        end = time.monotonic() + LIMIT_S
        while time.monotonic() < end:
            answer = await self.ask("GET", path, None, {})
            if reached(answer.status, await answer.json()):
                return
            await asyncio.sleep(0.2)
        raise SystemExit(f"{path} is not as expected after {LIMIT_S} s")

    async def record(self, exchange: Json) -> Json:
        """Return an exchange with the server's answer."""
        request = exchange["request"]
        text = request.get("bodyText", json.dumps(request["body"]) if "body" in request else None)
        answer = await self.ask(request["method"], request["path"], text, request.get("headers", {}))
        headers: Json = {"Content-Type": answer.headers["Content-Type"]}
        if warnings := answer.headers.getall("Warning", []):
            headers["Warning"] = warnings
        body = {"trimmed": True} if exchange.get("setup") else {"body": self._placeholders.put(await answer.json())}
        return {**exchange, "response": {"status": answer.status, "headers": headers, **body}}


def _true(definition: Json) -> set[str]:
    conditions = definition.get("status", {}).get("conditions") or ()
    return {one["type"] for one in conditions if one["status"] == "True"}


async def record(url: str, kubeconfig: Path, exchanges: list[Json]) -> list[Json]:
    connector = aiohttp.TCPConnector(ssl=administrator(kubeconfig))
    async with aiohttp.ClientSession(connector=connector) as session:
        recorder = Recorder(session, url)
        await recorder.define(definitions())
        return [await recorder.record(each) for each in exchanges]


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", required=True, help="address of the server")
    parser.add_argument("--kubeconfig", required=True, type=Path, help="with the certificates of CA and administrator")
    parser.add_argument("--server", required=True, help="program and version of the server")
    args = parser.parse_args(arguments)
    recording = json.loads(RECORDING.read_text())
    recording["server"], recording["recorded"] = args.server, datetime.now(UTC).date().isoformat()
    recording["definitions"] = definitions()
    recording["exchanges"] = asyncio.run(record(args.url, args.kubeconfig, recording["exchanges"]))
    write(recording)


def write(recording: Json) -> None:
    """Write the recording, each definition and each exchange on a line of its own."""
    head = {key: value for key, value in recording.items() if key not in {"definitions", "exchanges"}}
    parts = [f"{json.dumps(key)}: {json.dumps(value)}" for key, value in head.items()]
    for key in ("definitions", "exchanges"):
        lines = ",\n".join(json.dumps(each) for each in recording[key])
        parts.append(f'"{key}": [\n{lines}\n]')
    RECORDING.write_text("{\n" + ",\n".join(parts) + "\n}\n")


if __name__ == "__main__":
    main(sys.argv[1:])
