"""The few TPM 2.0 commands that attestation needs, as bytes to a TPM and back (TPM 2.0 Library part 3).

Only the standard library is used: images of machines contain a copy of this file without other libraries. A TPM is any
transport that answers a command: /dev/tpmrm0 of Linux, or a software TPM behind a socket.
"""

from __future__ import annotations

import hashlib
import os
import socket
import struct
from collections.abc import Callable, Iterator, Sequence
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
_QUOTE, _PCR_READ = 0x158, 0x17E
_OWNER, _NULL_HANDLE, _PASSWORD, _ENDORSEMENT = 0x40000001, 0x40000007, 0x40000009, 0x4000000B
_SHA256, _NULL = 0x000B, 0x0010
_POLICY_SESSION = 1
_RETRY, _YIELDED = 0x922, 0x908
_NV_CHUNK = 512
_RETRIES = 20
_EK_CERTIFICATES = {RSA: 0x01C00002, ECC: 0x01C0000A}
# PolicySecret of the endorsement hierarchy, from the standard templates of endorsement keys (TCG EK profile, B.3).
_EK_POLICY = bytes.fromhex("837197674484b3f81a90cc8d46a5d724fd52d76e06520b64f2a1da1b331469aa")
_EK_ATTRIBUTES, _SRK_ATTRIBUTES, _AK_ATTRIBUTES = 0x000300B2, 0x00030472, 0x00050472
_RSA_2048 = struct.pack(">HHHHHI", 0x0006, 128, 0x0043, _NULL, 2048, 0)  # AES-128-CFB, no scheme
_ECC_P256 = struct.pack(">HHHHHH", 0x0006, 128, 0x0043, _NULL, 3, _NULL)
_ECDSA_P256 = struct.pack(">HHHHH", _NULL, 0x0018, _SHA256, 3, _NULL)  # signs with SHA-256, protects no children
_QUOTES = 5  # attempts, as a PCR may be extended between the quote and the reading of the values


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


# Derived in milliseconds on every TPM: the PC Client profile requires P-256.
_AK_TEMPLATE = sized(struct.pack(">HHIH", 0x0023, _SHA256, _AK_ATTRIBUTES, 0) + _ECDSA_P256 + sized(bytes(32)) * 2)


class Quote:
    """A signed quote of PCRs of the SHA-256 bank.

    `attest` is TPMS_ATTEST, `signature` is TPMT_SIGNATURE, and `values` are those of the PCRs, in their order.
    """

    def __init__(self, attest: bytes, signature: bytes, values: list[bytes]) -> None:
        self.attest, self.signature, self.values = attest, signature, values


class Tpm:
    """One machine's TPM. All objects that this class creates in it are removed again."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    @contextmanager
    def keys(self, kind: str = RSA) -> Iterator[Keys]:
        """Load the endorsement key (TCG EK profile, template L-1 or L-2), the storage root key and the attestation
        key, while inside.

        A TPM derives the same keys each time; for RSA keys that may take half a minute.
        """
        with (
            self._primary(_ENDORSEMENT, _template(kind, _EK_ATTRIBUTES, _EK_POLICY)) as (ek, ek_public),
            self._primary(_OWNER, _template(kind, _SRK_ATTRIBUTES, b"")) as (srk, srk_public),
            self._primary(_ENDORSEMENT, _AK_TEMPLATE) as (ak, ak_public),
        ):
            yield Keys(self, (ek, srk, ak), ek_public, srk_public, ak_public)

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

    def activate(self, key: int, ek: int, blob: bytes, secret: bytes) -> bytes:
        """Run TPM2_ActivateCredential; `blob` and `secret` are TPM2Bs, with their sizes."""
        session = self._session()
        try:
            empty = sized(b"") * 3 + struct.pack(">i", 0)
            self._run(_POLICY_SECRET, struct.pack(">II", _ENDORSEMENT, session), empty, [_PASSWORD])
            return _take(
                self._run(_ACTIVATE_CREDENTIAL, struct.pack(">II", key, ek), blob + secret, [_PASSWORD, session])
            )[0]
        finally:
            self._flush(session)

    def quote(self, ak: int, nonce: bytes, pcrs: Sequence[int]) -> Quote:
        """Run TPM2_Quote, and read the values that it covers.

        Raises:
            TpmError: the TPM has no SHA-256 bank, or a PCR was extended at each attempt.
        """
        for _ in range(_QUOTES):
            answer = self._run(
                _QUOTE, struct.pack(">I", ak), sized(nonce) + struct.pack(">H", _NULL) + _selection(pcrs), [_PASSWORD]
            )
            attest, signature = _take(answer)
            values = self.read_pcrs(pcrs)
            if attest[-32:] == hashlib.sha256(b"".join(values)).digest():
                return Quote(attest, signature, values)
        raise TpmError(f"PCRs were extended during each of {_QUOTES} quotes")

    def read_pcrs(self, pcrs: Sequence[int]) -> list[bytes]:
        """Return the values of PCRs in the SHA-256 bank, in the order of their numbers."""
        values: dict[int, bytes] = {}
        while missing := sorted(set(pcrs) - set(values)):  # a TPM returns eight at most
            answer = self._run(_PCR_READ, b"", _selection(missing))
            read = _selected(answer[4:])
            rest = answer[4 + 4 + 6 + 4 :]
            for number in read:
                values[number], rest = _take(rest)
            if not read:
                raise TpmError("its SHA-256 bank of PCRs is not active; activate it in the firmware's setup")
        return [values[number] for number in sorted(values)]

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
    """Three keys in a TPM: endorsement key, storage root key and attestation key. Each `…_public` is TPM2B_PUBLIC."""

    def __init__(
        self, tpm: Tpm, handles: tuple[int, int, int], ek_public: bytes, srk_public: bytes, ak_public: bytes
    ) -> None:
        self._tpm = tpm
        self._ek, self._srk, self._ak = handles
        self.ek_public, self.srk_public, self.ak_public = ek_public, srk_public, ak_public

    def activate(self, blob: bytes, secret: bytes) -> bytes:
        """Return the secret that was wrapped for the endorsement key and the storage root key.

        Raises:
            TpmError: it was wrapped for others.
        """
        return self._tpm.activate(self._srk, self._ek, blob, secret)

    def activate_ak(self, blob: bytes, secret: bytes) -> bytes:
        """Return the secret that was wrapped for the endorsement key and the attestation key.

        Raises:
            TpmError: it was wrapped for others.
        """
        return self._tpm.activate(self._ak, self._ek, blob, secret)

    def quote(self, nonce: bytes, pcrs: Sequence[int]) -> Quote:
        """Quote PCRs with the attestation key; `nonce` becomes the quote's extraData, and has 32 bytes at most."""
        return self._tpm.quote(self._ak, nonce, pcrs)


def _selection(pcrs: Sequence[int]) -> bytes:
    """Return TPML_PCR_SELECTION for the SHA-256 bank."""
    bits = sum(1 << number for number in set(pcrs))
    return struct.pack(">IHB", 1, _SHA256, 3) + bits.to_bytes(3, "little")


def _selected(selection: bytes) -> list[int]:
    """Return the PCRs of a TPML_PCR_SELECTION with one bank, in their order."""
    if len(selection) < 10 or struct.unpack(">IHB", selection[:7]) != (1, _SHA256, 3):
        raise TpmError("the TPM's answer selects other PCRs than those of its SHA-256 bank")
    bits = int.from_bytes(selection[7:10], "little")
    return [number for number in range(24) if bits >> number & 1]


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
