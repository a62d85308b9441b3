"""The few TPM 2.0 commands that attestation needs, as bytes to a TPM and back (TPM 2.0 Library part 3).

Only the standard library is used: images of machines contain a copy of this file without other libraries. A TPM is any
transport that answers a command: /dev/tpmrm0 of Linux, or a software TPM behind a socket.
"""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

Transport = Callable[[bytes], bytes]  # a command; its response

DEVICE = Path("/dev/tpmrm0")
LARGEST = 4096
SOCKET_S = 60.0
RSA = "rsa"
ECC = "ecc"

_NO_SESSIONS, _SESSIONS = 0x8001, 0x8002
_CREATE_PRIMARY, _NV_READ, _ACTIVATE_CREDENTIAL, _POLICY_SECRET = 0x131, 0x14E, 0x147, 0x151
_FLUSH_CONTEXT, _NV_READ_PUBLIC, _START_AUTH_SESSION = 0x165, 0x169, 0x176
_OWNER, _NULL_HANDLE, _PASSWORD, _ENDORSEMENT = 0x40000001, 0x40000007, 0x40000009, 0x4000000B
_SHA256, _NULL = 0x000B, 0x0010
_POLICY_SESSION = 1
_RETRY, _YIELDED = 0x922, 0x908
_NV_CHUNK = 512
_RETRIES = 20
_EK_CERTIFICATES = {RSA: 0x01C00002, ECC: 0x01C0000A}
# PolicySecret of the endorsement hierarchy, from the standard templates of endorsement keys (TCG EK profile, B.3).
_EK_POLICY = bytes.fromhex("837197674484b3f81a90cc8d46a5d724fd52d76e06520b64f2a1da1b331469aa")
_EK_ATTRIBUTES, _SRK_ATTRIBUTES = 0x000300B2, 0x00030472
_RSA_2048 = struct.pack(">HHHHHI", 0x0006, 128, 0x0043, _NULL, 2048, 0)  # AES-128-CFB, no scheme
_ECC_P256 = struct.pack(">HHHHHH", 0x0006, 128, 0x0043, _NULL, 3, _NULL)


class TpmError(Exception):
    """The TPM rejected a command, or its response is malformed."""


def sized(content: bytes) -> bytes:
    """Return a TPM2B: the size in two bytes, and the content."""
    return struct.pack(">H", len(content)) + content


def _template(kind: str, attributes: int, policy: bytes) -> bytes:
    if kind == RSA:
        head, unique = struct.pack(">HHI", 0x0001, _SHA256, attributes), _RSA_2048 + sized(bytes(256))
    else:
        head, unique = struct.pack(">HHI", 0x0023, _SHA256, attributes), _ECC_P256 + sized(bytes(32)) * 2
    return sized(head + sized(policy) + unique)


class Tpm:
    """One machine's TPM. All objects that this class creates in it are removed again."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    @contextmanager
    def keys(self, kind: str = RSA) -> Iterator[Keys]:
        """Load the endorsement key (TCG EK profile, template L-1 or L-2) and the storage root key, while inside.

        A TPM derives the same keys each time; for RSA keys that may take half a minute.
        """
        with (
            self._primary(_ENDORSEMENT, _template(kind, _EK_ATTRIBUTES, _EK_POLICY)) as (ek, ek_public),
            self._primary(_OWNER, _template(kind, _SRK_ATTRIBUTES, b"")) as (srk, srk_public),
        ):
            yield Keys(self, ek, ek_public, srk, srk_public)

    def certificate(self, kind: str = RSA) -> bytes:
        """Return the certificate of the endorsement key, DER, from the TPM's NV memory; empty without one."""
        index = struct.pack(">I", _EK_CERTIFICATES[kind])
        try:
            public = self._run(_NV_READ_PUBLIC, index)
            size = struct.unpack(">H", _take(public)[0][-2:])[0]
            content = b""
            while len(content) < size:
                part = struct.pack(">HH", min(_NV_CHUNK, size - len(content)), len(content))
                content += _take(self._run(_NV_READ, index + index, part, [_PASSWORD]))[0]
        except TpmError:
            return b""
        return content

    def activate(self, srk: int, ek: int, blob: bytes, secret: bytes) -> bytes:
        """Run TPM2_ActivateCredential; `blob` and `secret` are TPM2Bs, with their sizes."""
        session = self._session()
        try:
            empty = sized(b"") * 3 + struct.pack(">i", 0)
            self._run(_POLICY_SECRET, struct.pack(">II", _ENDORSEMENT, session), empty, [_PASSWORD])
            return _take(
                self._run(_ACTIVATE_CREDENTIAL, struct.pack(">II", srk, ek), blob + secret, [_PASSWORD, session])
            )[0]
        finally:
            self._flush(session)

    def _session(self) -> int:
        nonce = sized(os.urandom(16))
        kind = struct.pack(">BHH", _POLICY_SESSION, _NULL, _SHA256)
        answer = self._run(
            _START_AUTH_SESSION, struct.pack(">II", _NULL_HANDLE, _NULL_HANDLE), nonce + sized(b"") + kind
        )
        return int(struct.unpack(">I", answer[:4])[0])

    @contextmanager
    def _primary(self, hierarchy: int, template: bytes) -> Iterator[tuple[int, bytes]]:
        sensitive = sized(sized(b"") + sized(b""))
        parameters = sensitive + template + sized(b"") + struct.pack(">I", 0)
        answer = self._run(_CREATE_PRIMARY, struct.pack(">I", hierarchy), parameters, [_PASSWORD], handle=True)
        handle = int(struct.unpack(">I", answer[:4])[0])
        try:
            yield handle, sized(_take(answer[4:])[0])
        finally:
            self._flush(handle)

    def _flush(self, handle: int) -> None:
        self._run(_FLUSH_CONTEXT, struct.pack(">I", handle))

    def _run(
        self,
        code: int,
        handles: bytes,
        parameters: bytes = b"",
        auths: list[int] | None = None,
        *,
        handle: bool = False,
    ) -> bytes:
        """Run a command; return the handle in its response, if it has one, and its parameters."""
        auth = b"".join(struct.pack(">IHBH", one, 0, int(one != _PASSWORD), 0) for one in auths or ())
        body = handles + (struct.pack(">I", len(auth)) + auth if auth else b"") + parameters
        command = struct.pack(">HII", _SESSIONS if auth else _NO_SESSIONS, 10 + len(body), code) + body
        for _ in range(_RETRIES):
            answer = self._transport(command)
            if len(answer) < 10 or struct.unpack(">I", answer[2:6])[0] != len(answer):
                raise TpmError("the TPM's answer is truncated")
            result = struct.unpack(">I", answer[6:10])[0]
            if result not in (_RETRY, _YIELDED):
                break
        if result:
            raise TpmError(f"the TPM answers {result:#x} to command {code:#x}")
        rest = answer[10:]
        if not auth:
            return rest
        at = 4 if handle else 0
        size = struct.unpack(">I", rest[at : at + 4])[0]
        return rest[:at] + rest[at + 4 : at + 4 + size]


class Keys:
    """Two keys in a TPM; `ek_public` and `srk_public` are TPM2B_PUBLIC."""

    def __init__(self, tpm: Tpm, ek: int, ek_public: bytes, srk: int, srk_public: bytes) -> None:
        self._tpm, self._ek, self._srk = tpm, ek, srk
        self.ek_public, self.srk_public = ek_public, srk_public

    def activate(self, blob: bytes, secret: bytes) -> bytes:
        """Return the secret that was wrapped for these keys. Raises TpmError when it was wrapped for others."""
        return self._tpm.activate(self._srk, self._ek, blob, secret)


def _take(data: bytes) -> tuple[bytes, bytes]:
    """Return the content of a TPM2B, and the bytes after it."""
    size = struct.unpack(">H", data[:2])[0] if len(data) >= 2 else LARGEST
    if len(data) < 2 + size:
        raise TpmError("the TPM's answer is truncated")
    return data[2 : 2 + size], data[2 + size :]


@contextmanager
def device(path: Path = DEVICE) -> Iterator[Transport]:
    """Open the TPM of this machine."""
    descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)

    def transport(command: bytes) -> bytes:
        os.write(descriptor, command)
        return os.read(descriptor, LARGEST)

    try:
        yield transport
    finally:
        os.close(descriptor)


@contextmanager
def socket_tpm(address: str) -> Iterator[Transport]:
    """Connect to a software TPM that takes commands on a socket: HOST:PORT, or the path of a Unix socket, which has a
    slash.
    """
    with _connected(address) as connection:

        def transport(command: bytes) -> bytes:
            connection.sendall(command)
            answer = b""
            while len(answer) < 6 or len(answer) < struct.unpack(">I", answer[2:6])[0]:
                more = connection.recv(LARGEST)
                if not more:
                    raise TpmError("the software TPM closed the connection")
                answer += more
            return answer

        yield transport


def _connected(address: str) -> socket.socket:
    if "/" not in address:
        host, _, port = address.rpartition(":")
        return socket.create_connection((host, int(port)), timeout=SOCKET_S)
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connection.settimeout(SOCKET_S)
    try:
        connection.connect(address)
    except OSError:
        connection.close()
        raise
    return connection
