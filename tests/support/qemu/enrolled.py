"""Variables of firmware that trusts the keys of one site, and no others: as a person enrols them in its menu.

The layout is that of EDK II's variable store (MdeModulePkg/Include/Guid/VariableFormat.h), the lists are those of
UEFI 2.10, 32.4.1.
"""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Final
from uuid import UUID

GLOBAL: Final = UUID("8be4df61-93ca-11d2-aa0d-00e098032b8c")
DATABASES: Final = UUID("d719b2cb-3d3a-4596-a3bc-dad00e67656f")
X509: Final = UUID("a5c059a1-94e4-4aa7-87b5-ab155c2bf072")
OWNER: Final = UUID("0b5e5a10-1111-4222-8333-944495559666")
AUTHENTICATED: Final = 0x27  # non-volatile, at boot and run time, with time-based authentication
STORE_HEADER: Final = 28  # GUID, size, format, state
HEADER: Final = struct.Struct("<HBBIQ16sIII16s")
STARTS: Final = 0x55AA
ADDED: Final = 0x3F
ENROLLED_AT: Final = struct.pack("<HBBBBBBIhBB", 2026, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0)


def with_keys_of(site: Path, store: Path, variables: Path) -> None:
    """Write the variables of a machine that starts what `site/db.key` has signed; those of `store` are left out."""
    content = bytearray(store.read_bytes())
    (volume_header,) = struct.unpack_from("<H", content, 48)
    (size,) = struct.unpack_from("<I", content, volume_header + 16)
    at, end = volume_header + STORE_HEADER, volume_header + size
    content[at:end] = b"\xff" * (end - at)
    for name, guid in (("db", DATABASES), ("KEK", GLOBAL), ("PK", GLOBAL)):
        record = _variable(name, guid, _signature_list((site / f"{name}.cer").read_bytes()))
        content[at : at + len(record)] = record
        at += (len(record) + 3) // 4 * 4
    variables.write_bytes(content)


def _signature_list(certificate: bytes) -> bytes:
    signature = OWNER.bytes_le + certificate
    return X509.bytes_le + struct.pack("<III", 28 + len(signature), 0, len(signature)) + signature


def _variable(name: str, guid: UUID, data: bytes) -> bytes:
    text = f"{name}\0".encode("utf-16-le")
    sizes = (len(text), len(data), guid.bytes_le)
    return HEADER.pack(STARTS, ADDED, 0, AUTHENTICATED, 0, ENROLLED_AT, 0, *sizes) + text + data
