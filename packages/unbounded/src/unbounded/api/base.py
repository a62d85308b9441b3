"""The base of all API types: frozen Structs whose fields carry Kubernetes' names on the wire."""

from typing import Final

import msgspec

_UPPER: Final = frozenset({"ca", "gc", "id", "ip", "sha256", "tls", "uid", "url"})


def api_name(field: str) -> str:
    """The JSON name of a field: `provider_id` is `providerID`, `cert_fingerprint` is `certFingerprint`."""
    first, *rest = field.split("_")
    return first + "".join(word.upper() if word in _UPPER else word[:1].upper() + word[1:] for word in rest)


class ApiStruct(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, rename=api_name):
    """A piece of an API object. Absent is None, empty is empty; unknown fields are skipped on decode.

    A decoded object is never written back whole, as that would lose what this version does not know:
    writers send patches of the fields that they own. `kw_only=True` has to be repeated on every subclass.
    """
