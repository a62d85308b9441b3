"""Agreement of `kubectl unbounded machine serial` and metalman: how they find each other, and how a user is identified.

metalman publishes the address and the certificate of its server in a Lease. The caller creates a
CertificateSigningRequest for a key that it has just generated, and the API server records its user there. That
request is never signed. The caller then signs metalman's challenge with the key, so that metalman knows the user
without seeing a credential of the cluster.

The output of a boot that failed is in a Secret, which the caller reads itself.
"""

from __future__ import annotations

from typing import Final

import msgspec

SIGNER: Final = "unbounded-cloud.io/serial-console"
VERB: Final = "serial"  # of RBAC, on the Machine
LEASE: Final = "serial-console"  # the component of its name; the site follows
ANNOTATION_URL: Final = "unbounded-cloud.io/serial-console-url"
ANNOTATION_CERTIFICATE: Final = "unbounded-cloud.io/serial-console-certificate"  # its SHA-256, in hex
ANNOTATION_POD: Final = "unbounded-cloud.io/serial-console-pod"  # absent where metalman runs outside of Pods
ANNOTATION_HOST: Final = "unbounded-cloud.io/serial-console-host"  # that it listens on
REQUEST_LIFE_S: Final = 300.0  # a request is accepted for so long after its creation
PATH: Final = "/serial/"  # the name of the Machine follows
# type of the Secret with the output of a boot that failed
CONSOLE_SECRET_TYPE: Final = "unbounded-cloud.io/console-output"  # noqa: S105
CONSOLE_KEY: Final = "console.log"  # in that Secret
ANNOTATION_OPERATION: Final = "unbounded-cloud.io/operation"  # on that Secret: the operation that has failed


class SerialChallenge(msgspec.Struct, frozen=True, kw_only=True):
    """First message of metalman."""

    nonce: str


class SerialOpening(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Answer of the caller: the name of its request, and the signature of `signed_text` in base64."""

    request: str
    signature: str
    read_only: bool = False


class SerialNotice(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    """Message of metalman: that the console is open, or why it ends. Output is in binary messages between the two."""

    over: str = ""
    read_only: bool = False
    end: str = ""
    is_failure: bool = False


def show_kept_command(machine: str) -> str:
    """Return the command that prints the kept output of a Machine's console."""
    return f"kubectl unbounded machine serial {machine} --last-failed"


def signed_text(challenge: SerialChallenge, certificate: str, machine: str) -> bytes:
    """Return the text that a caller signs; it is of use for this connection to this server only.

    Args:
        certificate: SHA-256 of the server's certificate, in hex.
    """
    return f"{SIGNER}\n{challenge.nonce}\n{certificate}\n{machine}".encode()
