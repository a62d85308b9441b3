"""The program: flags, health, and the order of things."""

from __future__ import annotations

import argparse
import http.server
import os
import signal
import socket
import sys
import threading
import time
from pathlib import Path
from types import FrameType
from typing import Any

from .api import Api
from .certificate import bootstrap, usable
from .files import read_yaml
from .given import VERSION, dials, say
from .node import Node, until_done


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
        until_done("certificate", lambda: bootstrap(flags, name, current))
    Node(Api(Path(flags.kubeconfig)), name, flags, config).work()
    return 0
