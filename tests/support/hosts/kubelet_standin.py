#!/usr/bin/python3
"""A stand-in for kubelet, where the real one cannot be had. It runs no Pods.

It reads the flags and files of a real kubelet, asks for its client certificate with the bootstrap kubeconfig, registers
its Node with labels and taints, reports version, boot id and whether containerd answers, renews its Lease, and tells
its health on port 10248. Like the real one it does not register a Node again that was deleted while it ran. It needs
python3 with its standard library, and openssl for keys.

/etc/kubelet-standin, or DIALS below, makes it misbehave: ignore-term, not-ready, crash, hang (before it does anything),
unhealthy, no-register.
"""

from __future__ import annotations

import argparse
import base64
import hashlib
import http.client
import http.server
import json
import os
import platform
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time
from datetime import UTC, datetime
from pathlib import Path
from types import FrameType
from typing import Any
from urllib.parse import urlsplit

VERSION = "0.0.0"  # the mirror of artifacts fills this in
DIALS = ""
DIALS_FILE = Path("/etc/kubelet-standin")
CALL_S = 10.0
SIGNER = "kubernetes.io/kube-apiserver-client-kubelet"


class Refused(Exception):
    """The API server said no: its status and words."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(f"{status}: {text}")
        self.status = status


def say(text: str) -> None:
    print(f"kubelet-standin: {text}", file=sys.stderr, flush=True)


def dials() -> set[str]:
    text = DIALS + " " + (DIALS_FILE.read_text() if DIALS_FILE.exists() else "")
    return set(text.replace(",", " ").split())


# Files


def read_yaml(text: str) -> Any:
    """JSON, or the YAML that our configuration files are written in: blocks, lists and plain or quoted scalars."""
    if text.lstrip().startswith(("{", "[")):
        return json.loads(text)
    lines = [line for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#") and line != "---"]
    value, rest = _block([(len(line) - len(line.lstrip()), line.strip()) for line in lines])
    assert not rest, rest
    return value


def _block(lines: list[tuple[int, str]]) -> tuple[Any, list[tuple[int, str]]]:
    if not lines:
        return None, []
    depth, first = lines[0]
    return _items(lines, depth) if first.startswith("- ") or first == "-" else _members(lines, depth)


def _items(lines: list[tuple[int, str]], depth: int) -> tuple[list[Any], list[tuple[int, str]]]:
    items: list[Any] = []
    while lines and lines[0][0] == depth and (lines[0][1].startswith("- ") or lines[0][1] == "-"):
        text = lines[0][1][1:].strip()
        lines = lines[1:]
        if text and not text.startswith(("'", '"', "{", "[")) and (text.endswith(":") or ": " in text):
            value, lines = _block([(depth + 2, text), *lines])
        elif text:
            value = _scalar(text)
        else:
            value, lines = _block(lines)
        items.append(value)
    return items, lines


def _members(lines: list[tuple[int, str]], depth: int) -> tuple[dict[str, Any], list[tuple[int, str]]]:
    members: dict[str, Any] = {}
    while lines and lines[0][0] == depth and not lines[0][1].startswith("- "):
        key, _, text = lines[0][1].partition(":")
        text, lines = text.strip(), lines[1:]
        below = bool(lines) and (lines[0][0] > depth or (lines[0][0] == depth and lines[0][1].startswith("- ")))
        if not text and below:
            members[_scalar(key)], lines = _block(lines)
        else:
            members[_scalar(key)] = _scalar(text)
    return members, lines


def _scalar(text: str) -> Any:
    if text[:1] in ('"', "{", "["):
        return json.loads(text)
    if text[:1] == "'":
        return text[1:-1].replace("''", "'")
    words = {"true": True, "false": False, "null": None, "": None}
    if text in words:
        return words[text]
    return int(text) if text.lstrip("-").isdigit() else text


def seconds(text: Any, default: float) -> float:
    """A duration as Go writes it: 10s, 1m30s."""
    units, total, number = {"h": 3600.0, "m": 60.0, "s": 1.0}, 0.0, ""
    for letter in str(text or ""):
        if letter in units:
            total, number = total + float(number) * units[letter], ""
        else:
            number += letter
    return total or default


# Talking to the API server


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
        self._headers = {"Accept": "application/json", "User-Agent": f"kubelet-standin/v{VERSION}"}
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
            _write(own, b"\n".join(data))
            self._tls.load_cert_chain(own)

    def call(self, method: str, path: str, body: Any = None, kind: str = "application/json") -> Any:
        door = http.client.HTTPSConnection(
            self._server.hostname or "", self._server.port or 443, timeout=CALL_S, context=self._tls
        )
        try:
            content = None if body is None else json.dumps(body).encode()
            door.request(method, path, content, {**self._headers, "Content-Type": kind})
            answer = door.getresponse()
            text = answer.read().decode()
        finally:
            door.close()
        if answer.status >= 300:
            raise Refused(answer.status, text[:300])
        return json.loads(text)


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


def _write(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_name(path.name + ".new")
    descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)
    new.replace(path)


# The certificate


def _openssl(*arguments: str) -> bytes:
    return subprocess.run(["openssl", *arguments], check=True, capture_output=True, timeout=CALL_S).stdout


def usable(kubeconfig: Path, current: Path) -> bool:
    """Whether there is a kubeconfig, and what it names can still be used."""
    if not kubeconfig.exists():
        return False
    if str(current) not in kubeconfig.read_text():
        return True
    try:
        _openssl("x509", "-in", str(current), "-noout", "-checkend", "1")
    except (subprocess.SubprocessError, OSError):
        return False
    return True


def bootstrap(flags: argparse.Namespace, name: str, current: Path) -> None:
    """Ask for a client certificate, wait for it, and write it with a kubeconfig that names it."""
    api = Api(Path(flags.bootstrap_kubeconfig))
    key = Path(flags.cert_dir) / "kubelet-client.key.tmp"
    if not key.exists():
        _write(key, _openssl("ecparam", "-genkey", "-name", "prime256v1", "-noout"))
    subject = f"/O=system:nodes/CN=system:node:{name}"
    request = _openssl("req", "-new", "-key", str(key), "-subj", subject)
    public = _openssl("pkey", "-in", str(key), "-pubout")
    asked = f"node-csr-{hashlib.sha256(public + name.encode()).hexdigest()[:40]}"
    chain = _certificate(api, asked, request)
    dated = current.with_name(f"kubelet-client-{datetime.now(UTC):%Y-%m-%d-%H-%M-%S}.pem")
    _write(dated, chain + key.read_bytes())
    link = current.with_name("kubelet-client-current.new")
    link.unlink(missing_ok=True)
    link.symlink_to(dated)
    link.replace(current)
    config = {**api.config, "users": [{"name": "default-auth", "user": _by_file(current)}]}
    config["contexts"] = [
        {"name": each["name"], "context": {**each["context"], "user": "default-auth"}}
        for each in api.config["contexts"]
    ]
    _write(Path(flags.kubeconfig), json.dumps(config).encode())
    key.unlink()
    say("has its certificate")


def _by_file(current: Path) -> dict[str, str]:
    return {"client-certificate": str(current), "client-key": str(current)}


def _certificate(api: Api, name: str, request: bytes) -> bytes:
    path = "/apis/certificates.k8s.io/v1/certificatesigningrequests"
    body = {
        "apiVersion": "certificates.k8s.io/v1",
        "kind": "CertificateSigningRequest",
        "metadata": {"name": name},
        "spec": {
            "request": base64.b64encode(request).decode(),
            "signerName": SIGNER,
            "usages": ["digital signature", "client auth"],
        },
    }
    try:
        api.call("POST", path, body)
    except Refused as refusal:
        if refusal.status != 409:
            raise
    say(f"waits for its certificate: {name}")
    while True:
        status = api.call("GET", f"{path}/{name}").get("status") or {}
        if status.get("certificate"):
            return base64.b64decode(status["certificate"])
        for condition in status.get("conditions") or []:
            if condition["type"] in ("Denied", "Failed"):
                raise SystemExit(f"{name}: {condition['type']}: {condition.get('message', '')}")
        time.sleep(0.2)


# The Node


class Node:
    """Args:
    config: KubeletConfiguration.
    """

    def __init__(self, api: Api, name: str, flags: argparse.Namespace, config: dict[str, Any]) -> None:
        self.api, self.name, self.flags, self.config = api, name, flags, config
        endpoint = flags.container_runtime_endpoint or config.get("containerRuntimeEndpoint") or ""
        self.runtime = endpoint.removeprefix("unix://") or "/run/containerd/containerd.sock"
        self.lease_s = int(config.get("nodeLeaseDurationSeconds") or 40)

    def register(self) -> None:
        labels = {"kubernetes.io/hostname": self.name, "kubernetes.io/os": "linux", "kubernetes.io/arch": _arch()}
        labels.update(part.split("=", 1) for part in self.flags.node_labels.split(",") if part)
        taints = [_taint(part) for part in self.flags.register_with_taints.split(",") if part]
        taints += self.config.get("registerWithTaints") or []
        body = {
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {"name": self.name, "labels": labels},
            "spec": {"taints": taints} if taints else {},
        }
        try:
            self.api.call("POST", "/api/v1/nodes", body)
            say(f"registered Node {self.name}")
        except Refused as refusal:
            if refusal.status != 409:
                raise
            say(f"Node {self.name} is there")

    def report(self) -> None:
        now = _stamp()
        ready = "not-ready" not in dials() and self._runtime_answers()
        condition = {
            "type": "Ready",
            "status": "True" if ready else "False",
            "reason": "KubeletReady" if ready else "KubeletNotReady",
            "message": "the stand-in is up" if ready else "container runtime does not answer",
            "lastHeartbeatTime": now,
            "lastTransitionTime": now,
        }
        body = {"status": {"conditions": [condition], "nodeInfo": self._info(), "addresses": self._addresses()}}
        path = f"/api/v1/nodes/{self.name}/status"
        self.api.call("PATCH", path, body, "application/strategic-merge-patch+json")

    def _addresses(self) -> list[dict[str, str]]:
        return [{"type": "Hostname", "address": self.name}]

    def _info(self) -> dict[str, str]:
        return {
            "kubeletVersion": f"v{VERSION}",
            "kubeProxyVersion": f"v{VERSION}",
            "bootID": Path("/proc/sys/kernel/random/boot_id").read_text().strip(),
            "machineID": Path("/etc/machine-id").read_text().strip(),
            "systemUUID": Path("/etc/machine-id").read_text().strip(),
            "kernelVersion": platform.release(),
            "osImage": "kubelet-standin",
            "containerRuntimeVersion": "containerd://unknown",
            "operatingSystem": "linux",
            "architecture": _arch(),
        }

    def _runtime_answers(self) -> bool:
        try:
            with socket.socket(socket.AF_UNIX) as door:
                door.settimeout(1.0)
                door.connect(self.runtime)
        except OSError:
            return False
        return True

    def renew(self) -> None:
        """The Lease; it is made when it is not there, for a Node that is."""
        path = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases"
        spec = {"holderIdentity": self.name, "leaseDurationSeconds": self.lease_s, "renewTime": _stamp(micro=True)}
        try:
            kind = "application/merge-patch+json"
            self.api.call("PATCH", f"{path}/{self.name}", {"spec": spec}, kind)
        except Refused as refusal:
            if refusal.status != 404:
                raise
            node = self.api.call("GET", f"/api/v1/nodes/{self.name}")
            owner = {"apiVersion": "v1", "kind": "Node", "name": self.name, "uid": node["metadata"]["uid"]}
            body = {
                "apiVersion": "coordination.k8s.io/v1",
                "kind": "Lease",
                "metadata": {"name": self.name, "namespace": "kube-node-lease", "ownerReferences": [owner]},
                "spec": spec,
            }
            self.api.call("POST", path, body)

    def work(self) -> None:
        """Register, then tell until the process ends. What fails is tried again; a Node that was deleted stays so."""
        if "no-register" not in dials():
            _until_done("register", self.register)
        report_s = seconds(self.config.get("nodeStatusUpdateFrequency"), 10.0)
        told = renewed = reached = 0.0
        while True:
            now = time.monotonic()
            wait_s = 1.0 if reached == 0.0 else report_s  # until Ready was said once it is looked at more often
            if now - told >= wait_s and _tried("status", self.report):
                told, reached = now, now if self._runtime_answers() else 0.0
            if now - renewed >= self.lease_s / 4 and _tried("lease", self.renew):
                renewed = now
            time.sleep(0.2)


def _tried(what: str, act: Any) -> bool:
    try:
        act()
    except (Refused, OSError, http.client.HTTPException) as error:
        say(f"{what}: {error}")
        time.sleep(0.8)
        return False
    return True


def _until_done(what: str, act: Any) -> None:
    while not _tried(what, act):
        pass


def _taint(text: str) -> dict[str, str]:
    pair, _, effect = text.rpartition(":")
    key, _, value = pair.partition("=")
    return {"key": key, "value": value, "effect": effect}


def _arch() -> str:
    return {"x86_64": "amd64", "aarch64": "arm64"}.get(platform.machine(), platform.machine())


def _stamp(*, micro: bool = False) -> str:
    return f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%S{'.%f' if micro else ''}}Z"


# Health


class Health(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        fine = "unhealthy" not in dials()
        self.send_response(200 if fine else 500)
        self.end_headers()
        self.wfile.write(b"ok" if fine else b"unhealthy")

    def log_message(self, *_arguments: Any) -> None:
        pass


def serve_health(config: dict[str, Any]) -> None:
    address = config.get("healthzBindAddress") or "127.0.0.1", int(config.get("healthzPort") or 10248)
    http.server.ThreadingHTTPServer.allow_reuse_address = True
    door = http.server.ThreadingHTTPServer(address, Health)
    threading.Thread(target=door.serve_forever, daemon=True).start()


def notify_ready() -> None:
    address = os.environ.get("NOTIFY_SOCKET")
    if address:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as door:
            door.connect(address.replace("@", "\0", 1) if address.startswith("@") else address)
            door.send(b"READY=1")


# The program


def _terminated(_signal: int, _frame: FrameType | None) -> None:
    if "ignore-term" in dials():
        say("was asked to end, and does not")
        return
    os._exit(0)


def read_flags(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="kubelet", allow_abbrev=False)
    parser.add_argument("--version", action="store_true")
    parser.add_argument("--bootstrap-kubeconfig", default="")
    parser.add_argument("--kubeconfig", default="/var/lib/kubelet/kubeconfig")
    parser.add_argument("--cert-dir", default="/var/lib/kubelet/pki")
    parser.add_argument("--hostname-override", default="")
    parser.add_argument("--node-labels", default="")
    parser.add_argument("--register-with-taints", default="")
    parser.add_argument("--config", default="")
    parser.add_argument("--container-runtime-endpoint", default="")
    return parser.parse_known_args(arguments)[0]


def main() -> int:
    flags = read_flags(sys.argv[1:])
    if flags.version:
        print(f"Kubernetes v{VERSION}")
        return 0
    signal.signal(signal.SIGTERM, _terminated)
    if "crash" in dials():
        say("crashes, as it was told to")
        return 1
    while "hang" in dials():
        time.sleep(1)
    config = read_yaml(Path(flags.config).read_text()) if flags.config else {}
    name = flags.hostname_override or socket.gethostname()
    current = Path(flags.cert_dir) / "kubelet-client-current.pem"
    serve_health(config)
    notify_ready()
    if not usable(Path(flags.kubeconfig), current):
        if not flags.bootstrap_kubeconfig or not Path(flags.bootstrap_kubeconfig).exists():
            say(f"neither {flags.kubeconfig} nor a bootstrap kubeconfig can be used")
            return 1
        _until_done("certificate", lambda: bootstrap(flags, name, current))
    Node(Api(Path(flags.kubeconfig)), name, flags, config).work()
    return 0


if __name__ == "__main__":
    sys.exit(main())
