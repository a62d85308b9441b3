"""A frame of LLDP, and the facts in it."""

from __future__ import annotations

from typing import Final

# of lldpd 1.0.16 of Debian 12, as tcpdump wrote it
FRAME: Final = bytes.fromhex(
    "0180c200000e02aa0000000188cc02070402aa0000000104050573777031060200040a0e6c6561662d372e6578616d706c650c10537769746368"
    "2037206d6f64656c20580e04009c008010181102fe8000000000000078b550fffeb9b3ea0200000002000813746f207261636b312d30312c2070"
    "6f72742031fe0900120f030100000000fe0900120f0100800000360000"
)
LEAF: Final = {
    "chassisID": "02:aa:00:00:00:01",
    "portID": "swp1",
    "portDescription": "to rack1-01, port 1",
    "systemName": "leaf-7.example",
}
