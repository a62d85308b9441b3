"""Authentication: from the Secret of a credential, or by the principal of the process's environment."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final

from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_pem_private_key

from unbounded.kube.logs import SecretStr

KEYS: Final = ("tenancyOCID", "userOCID", "region", "fingerprint", "privateKey")
PASSPHRASE: Final = "privateKeyPassphrase"  # noqa: S105

_REGION: Final = re.compile(r"[a-z]+(-[a-z]+)+-[0-9]+")
_FINGERPRINT: Final = re.compile(r"[0-9a-f]{2}(:[0-9a-f]{2}){15}")


@dataclass(frozen=True)
class OciApiKey:
    """A user's API key, in the SDK's form."""

    tenancy: str
    user: str
    region: str
    fingerprint: str
    private_key: SecretStr
    passphrase: SecretStr | None


def api_key(secret: Mapping[str, SecretStr]) -> OciApiKey:
    """Parse a Secret.

    Raises:
        ValueError: a value is invalid; names its key but not the value.
    """
    text = {name: value.reveal().strip() for name, value in secret.items()}
    for name, kind in (("tenancyOCID", "tenancy"), ("userOCID", "user")):
        if not text[name].startswith(f"ocid1.{kind}."):
            raise ValueError(f"{name} must be the OCID of a {kind}, ocid1.{kind}.…")
    if not _REGION.fullmatch(text["region"]):
        raise ValueError("region must be the name of a region, such as us-phoenix-1")
    fingerprint = text["fingerprint"].lower()
    if not _FINGERPRINT.fullmatch(fingerprint):
        raise ValueError("fingerprint must be 16 bytes in hexadecimal, separated by colons")
    if _fingerprint(text["privateKey"], text.get(PASSPHRASE)) != fingerprint:
        raise ValueError("fingerprint is not that of privateKey: take both from the same API key")
    passphrase = SecretStr(text[PASSPHRASE]) if text.get(PASSPHRASE) else None
    return OciApiKey(
        text["tenancyOCID"], text["userOCID"], text["region"], fingerprint, SecretStr(text["privateKey"]), passphrase
    )


def _fingerprint(pem: str, passphrase: str | None) -> str:
    try:
        key = load_pem_private_key(pem.encode(), passphrase.encode() if passphrase else None)
    except TypeError:
        missing = "needs privateKeyPassphrase" if not passphrase else "is not encrypted: omit privateKeyPassphrase"
        raise ValueError(f"privateKey {missing}") from None
    except Exception:  # each format has its own errors, and their messages may contain the key
        raise ValueError("privateKey must be an RSA key in PEM form that privateKeyPassphrase decrypts") from None
    if not isinstance(key, rsa.RSAPrivateKey):
        raise ValueError("privateKey must be an RSA key")  # noqa: TRY004  # it is the text that is wrong
    encoded = key.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    return hashlib.md5(encoded, usedforsecurity=False).digest().hex(":")


class Principal(Enum):
    """Principal of a process without a Secret."""

    RESOURCE = "the resource that it belongs to"
    WORKLOAD = "the workload of an OKE cluster"
    INSTANCE = "the instance that it runs on"


def principal(environ: Mapping[str, str]) -> Principal:
    """Detect the principal by the variables of OKE and functions: OCI_RESOURCE_PRINCIPAL_VERSION, with a token (RPST)
    or

    without.
    """
    if not environ.get("OCI_RESOURCE_PRINCIPAL_VERSION"):
        return Principal.INSTANCE
    has_token = bool(environ.get("OCI_RESOURCE_PRINCIPAL_RPST"))
    return Principal.WORKLOAD if not has_token and environ.get("KUBERNETES_SERVICE_HOST") else Principal.RESOURCE
