"""Talking to the API server, as one user of a kubeconfig."""

from __future__ import annotations

import base64
import http.client
import json
import os
import ssl
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from . import wire
from .files import read_yaml
from .given import VERSION

CALL_S = 10.0


class Refused(Exception):
    """The API server refused a request: its status and message."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(f"{status}: {text}")
        self.status = status


class Api:
    """One cluster, with one user of a kubeconfig."""

    def __init__(self, kubeconfig: Path) -> None:
        config = read_yaml(kubeconfig.read_text())
        current = next(each["context"] for each in config["contexts"] if each["name"] == config["current-context"])
        cluster = next(each["cluster"] for each in config["clusters"] if each["name"] == current["cluster"])
        user = next(each["user"] for each in config["users"] if each["name"] == current["user"])
        self.config, self.cluster = config, cluster
        self._server = urlsplit(cluster["server"])
        self._tls = ssl.create_default_context(cadata=_pem(cluster, "certificate-authority", kubeconfig))
        accept = f"{wire.MEDIA_TYPE},application/json"  # what there is in protobuf it could not read
        self._headers = {"Accept": accept, "User-Agent": f"kubelet-standin/v{VERSION}"}
        token = user.get("token") or (Path(user["tokenFile"]).read_text() if "tokenFile" in user else None)
        if "exec" in user:
            token = _from_program(user["exec"])
        if token:
            self._headers["Authorization"] = f"Bearer {token.strip()}"
        if "client-certificate" in user:
            self._tls.load_cert_chain(user["client-certificate"], user["client-key"])
        elif "client-certificate-data" in user:
            own = kubeconfig.parent / ".standin.pem"
            data = (base64.b64decode(user[f"client-{part}-data"]) for part in ("certificate", "key"))
            write_private(own, b"\n".join(data))
            self._tls.load_cert_chain(own)

    def call(self, method: str, path: str, body: Any = None, kind: str = wire.MEDIA_TYPE) -> Any:
        """Args: body: bytes of protobuf, or what goes as JSON of another kind."""
        content = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        door, answer = self._ask(method, path, content, kind, CALL_S)
        try:
            text = answer.read().decode()
        finally:
            door.close()
        return json.loads(text)

    def watch(self, path: str, seconds_at_most: float) -> Iterator[dict[str, Any]]:
        door, answer = self._ask("GET", path, None, "", seconds_at_most + CALL_S)
        try:
            while line := answer.readline():
                yield json.loads(line)
        finally:
            door.close()

    def _ask(
        self, method: str, path: str, content: bytes | None, kind: str, within_s: float
    ) -> tuple[http.client.HTTPSConnection, http.client.HTTPResponse]:
        door = http.client.HTTPSConnection(
            self._server.hostname or "", self._server.port or 443, timeout=within_s, context=self._tls
        )
        try:
            headers = self._headers if content is None else {**self._headers, "Content-Type": kind}
            door.request(method, path, content, headers)
            answer = door.getresponse()
            if answer.status >= 300:
                raise Refused(answer.status, answer.read().decode()[:300])
            if warning := answer.getheader("Warning"):
                raise Refused(answer.status, f"{method} {path}: {warning}")
        except BaseException:
            door.close()
            raise
        return door, answer


def _pem(part: dict[str, Any], key: str, kubeconfig: Path) -> str:
    if f"{key}-data" in part:
        return base64.b64decode(part[f"{key}-data"]).decode()
    return (kubeconfig.parent / str(part[key])).read_text()


def _from_program(told: dict[str, Any]) -> str:
    variables = {each["name"]: each["value"] for each in told.get("env") or []}
    out = subprocess.run(
        [told["command"], *(told.get("args") or [])],
        env={**os.environ, **variables},
        check=True,
        capture_output=True,
        timeout=CALL_S,
    ).stdout
    return str(json.loads(out)["status"]["token"])


def write_private(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_name(path.name + ".new")
    descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)
    new.replace(path)
