"""nodes/proxy: what is passed on, and to which addresses."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from unbounded_apiserver.http.kubelet_client import is_global

CASES = Path(__file__).with_name("proxy_cases.py")
NETWORK = "ip link set lo up && ip address add 192.0.2.1/32 dev lo && exec"


@pytest.mark.slow
@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="a network of its own needs root")
def test_requests_are_passed_on_as_kube_apiserver_does(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--basetemp", str(tmp_path), str(CASES)]
    script = f'{NETWORK} "$@"'
    done = subprocess.run(
        ["unshare", "--net", "sh", "-c", script, "sh", *command], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("address", "passes"),
    [  # as a kube-apiserver 1.36 answered
        ("0.0.0.0", False),
        ("::", False),
        ("224.0.0.1", False),
        ("ff02::1", False),
        ("255.255.255.255", False),
        ("127.0.0.1", False),
        ("::1", False),
        ("::ffff:127.0.0.1", False),
        ("169.254.169.254", False),
        ("fe80::1", False),
        ("fe80::1%lo", False),
        ("10.0.0.1", True),
        ("100.64.0.1", True),
        ("240.0.0.1", True),
        ("2001:db8::1", True),
        ("fc00::1", True),
        ("::ffff:192.0.2.1", True),
    ],
)
def test_addresses_that_requests_are_passed_on_to(address: str, passes: bool) -> None:
    assert is_global(address) is passes
