"""A machine without a port for the servers of the tests is reported; no server is taken for another."""

from __future__ import annotations

import pytest

from tests.support.ssh.sshd import is_taken

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
