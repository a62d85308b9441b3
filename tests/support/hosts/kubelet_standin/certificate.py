"""The client certificate, requested with a bootstrap token."""

from __future__ import annotations

import argparse
import base64
import json
import subprocess
from datetime import UTC, datetime
from pathlib import Path
from urllib.parse import quote

from . import wire
from .api import CALL_S, Api, write_private
from .given import say
from .reflector import watch_path

SIGNER = "kubernetes.io/kube-apiserver-client-kubelet"


def _openssl(*arguments: str) -> bytes:
    return subprocess.run(["openssl", *arguments], check=True, capture_output=True, timeout=CALL_S).stdout


def usable(kubeconfig: Path, current: Path) -> bool:
    """Return whether there is a kubeconfig whose certificate is still usable."""
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
    """Request a client certificate, wait for it, and write it with a kubeconfig that names it."""
    api = Api(Path(flags.bootstrap_kubeconfig))
    key = Path(flags.cert_dir) / "kubelet-client.key.tmp"
    if not key.exists():
        write_private(key, _openssl("ecparam", "-genkey", "-name", "prime256v1", "-noout"))
    subject = f"/O=system:nodes/CN=system:node:{name}"
    request = _openssl("req", "-new", "-key", str(key), "-subj", subject)
    chain = _certificate(api, request)
    dated = current.with_name(f"kubelet-client-{datetime.now(UTC):%Y-%m-%d-%H-%M-%S}.pem")
    write_private(dated, chain + key.read_bytes())
    link = current.with_name("kubelet-client-current.new")
    link.unlink(missing_ok=True)
    link.symlink_to(dated)
    link.replace(current)
    config = {**api.config, "users": [{"name": "default-auth", "user": _by_file(current)}]}
    config["contexts"] = [
        {"name": each["name"], "context": {**each["context"], "user": "default-auth"}}
        for each in api.config["contexts"]
    ]
    write_private(Path(flags.kubeconfig), json.dumps(config).encode())
    key.unlink()
    say("has its certificate")


def _by_file(current: Path) -> dict[str, str]:
    return {"client-certificate": str(current), "client-key": str(current)}


def _certificate(api: Api, request: bytes) -> bytes:
    """Request a certificate, and wait for it: by a list of one name, and by a watch of it."""
    path = "/apis/certificates.k8s.io/v1/certificatesigningrequests"
    made = api.call("POST", path, wire.signing_request(request, SIGNER, ("digital signature", "client auth")))
    name = made["metadata"]["name"]
    say(f"waits for its certificate: {name}")
    only = f"metadata.name={name}"
    found = api.call("GET", f"{path}?fieldSelector={quote(only, safe='')}")["items"]
    assert [one["metadata"]["name"] for one in found] == [name], found
    while True:
        for event in api.watch(*watch_path(path, only)):
            status = event["object"].get("status") or {}
            if status.get("certificate"):
                return base64.b64decode(status["certificate"])
            for condition in status.get("conditions") or []:
                if condition["type"] in ("Denied", "Failed"):
                    raise SystemExit(f"{name}: {condition['type']}: {condition.get('message', '')}")
