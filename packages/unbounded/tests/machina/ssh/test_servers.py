"""The servers of the tests are hosts of their own, as OpenSSH's own client confirms."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.support.ssh.sshd import SUDO_MODES, Fleet, Server, is_taken, missing, sshd_fleet

ABSENT = missing()
pytestmark = [
    pytest.mark.slow,
    pytest.mark.root,
    pytest.mark.skipif(ABSENT is not None, reason=f"needs {ABSENT}"),
]


def logged_in(fleet: Fleet, server: Server, command: str, *, user: str = "ubuntu") -> subprocess.CompletedProcess[str]:
    known = fleet.folder / "known_hosts"
    known.write_text(f"{server.address} {server.host_key}\n")
    options = ["-F", "none", "-i", str(fleet.key), "-o", f"UserKnownHostsFile={known}", "-o", "BatchMode=yes"]
    line = ["ssh", *options, f"{user}@{server.address}", command]
    return subprocess.run(line, capture_output=True, text=True, timeout=60, check=False)


def test_a_host_has_accounts_sudo_and_processes_of_its_own(tmp_path: Path) -> None:
    with sshd_fleet(tmp_path / "fleet", 1) as fleet:
        host = fleet.servers[0]
        assert logged_in(fleet, host, "id -u; sudo -n id -u").stdout.split() == ["1000", "0"]
        told = logged_in(fleet, host, "id -u; echo $UNBOUNDED_INSTALL_DIR", user="root")
        assert told.stdout.split() == ["0", "/srv/install"]
        host.sudo(SUDO_MODES[1])
        refused = logged_in(fleet, host, "sudo -n true")
        assert (refused.returncode, refused.stderr.strip()) == (1, "sudo: a password is required")
        assert logged_in(fleet, host, "setsid sleep 777 </dev/null >/dev/null 2>&1 &").returncode == 0
        host.close()
        assert logged_in(fleet, host, "true").returncode == 255
        assert host.run("pgrep -f '[s]leep 777'").stdout
        host.start()
        assert logged_in(fleet, host, "pgrep -f '[s]leep 777'").returncode == 0
        host.down()
        host.rekey()
        host.start()
        assert host.run("pgrep -f '[s]leep 777'").stdout == ""
        assert logged_in(fleet, host, "true").returncode == 0
        assert host.fingerprint.startswith("SHA256:")


ROWS = """  sl  local_address rem_address   st tx_queue rx_queue
   0: {address}:{port} 00000000:0000 {state} 00000000:00000000 00:00000000 00000000     0        0 1
"""


@pytest.mark.parametrize(
    ("address", "port", "state", "taken"),
    [
        ("00000000", "0016", "0A", True),
        ("0" * 32, "0016", "0A", True),
        ("0100007F", "0016", "0A", False),
        ("00000000", "1600", "0A", False),
        ("00000000", "0016", "01", False),
    ],
    ids=["everywhere", "everywhere over IPv6", "one address", "another port", "no listener"],
)
def test_a_server_of_this_machine_on_all_addresses_leaves_no_port(
    address: str, port: str, state: str, taken: bool
) -> None:
    assert is_taken(ROWS.format(address=address, port=port, state=state)) is taken
