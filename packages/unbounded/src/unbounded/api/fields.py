"""The base of all API types, the schema annotations of their fields, and the types that several kinds share.

API types are frozen Structs, whose fields carry Kubernetes' names on the wire. Decoding enforces no annotation: the API
server has validated the object, and a controller must be able to read objects that an older definition admitted.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, fields
from typing import Annotated, Any, Final

import msgspec

_UPPER: Final = frozenset({"ca", "gc", "id", "ip", "sha256", "tls", "uid", "url"})


def api_name(field: str) -> str:
    """The JSON name of a field: `provider_id` is `providerID`, `cert_fingerprint` is `certFingerprint`."""
    first, *rest = field.split("_")
    return first + "".join(word.upper() if word in _UPPER else word[:1].upper() + word[1:] for word in rest)


class ApiStruct(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, rename=api_name, gc=False):
    """A piece of an API object. Absent is None, empty is empty; unknown fields are skipped on decode.

    A decoded object is never written back whole, as that would lose what this version does not know:
    writers send patches of the fields that they own. `kw_only=True` has to be repeated on every subclass.
    Frozen data has no cycles, so the garbage collector does not follow it.
    """


MAX_STRING: Final = 1024
MAX_MESSAGE: Final = 32768  # of metav1.Condition
MAX_REASON: Final = 1024
MAX_LIST: Final = 64
MAX_MAP: Final = 64
MAX_LABEL_VALUE: Final = 63

IPV4_OCTET: Final = r"(25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])"
IPV4: Final = rf"^({IPV4_OCTET}\.){{3}}{IPV4_OCTET}$"
MAC: Final = r"^([0-9A-Fa-f]{2}:){5}[0-9A-Fa-f]{2}$"
DNS_LABEL: Final = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"
DNS_SUBDOMAIN: Final = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$"
DATA_KEY: Final = r"^[-._a-zA-Z0-9]+$"
LABEL_KEY: Final = r"^([a-z0-9]([-a-z0-9.]*[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?$"
LABEL_VALUE: Final = r"^(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?$"
CONDITION_TYPE: Final = (
    r"^([a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*/)?"
    r"(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])$"
)
CONDITION_REASON: Final = r"^[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?$"
HTTP_URL: Final = r"^https?://[^/?#@\s]+([/?][^\s]*)?$"  # no user information: a spec never contains a password
RELEASE_VERSION: Final = r"^v?[0-9]+\.[0-9]+(\.[0-9]+([-+][0-9A-Za-z.+-]+)?)?$"
TAINT: Final = r"^[^=:\s]+(=[^:\s]*)?:(NoSchedule|PreferNoSchedule|NoExecute)$"
SHA256: Final = r"^[0-9A-Fa-f]{64}$"
# a quantity of Kubernetes without exponent; only 0 is zero
DISK_SIZE: Final = (
    r"^(0|[1-9][0-9]{0,17}(\.[0-9]{1,6})?(k|[MGTPE]|[KMGTPE]i)?|0\.[0-9]{0,5}[1-9](k|[MGTPE]|[KMGTPE]i))$"
)
HOST_KEY: Final = r"^[a-z0-9@.-]+ [A-Za-z0-9+/]{32,}={0,3}( .*)?$"


@dataclass(frozen=True)
class Field:
    """One field's description and limits; in `Annotated`, several combine, and the last value wins."""

    description: str | None = None
    pattern: str | None = None
    format: str | None = None
    enum: tuple[str, ...] | None = None
    min_length: int | None = None
    max_length: int | None = None
    minimum: int | None = None
    maximum: int | None = None
    min_items: int | None = None
    max_items: int | None = None
    max_properties: int | None = None
    map_keys: tuple[str, ...] | None = None  # the list is a map with these keys; without them it is atomic
    defaulted: bool | None = None  # the server fills in the default of the Struct

    def over(self, other: Field) -> Field:
        """Return this Field, with the other's values where this one has none."""
        message: dict[str, Any] = {
            f.name: value if (value := getattr(self, f.name)) is not None else getattr(other, f.name)
            for f in fields(self)
        }
        return Field(**message)


def combined(metadata: Iterable[object]) -> Field:
    """Return the one Field that the metadata of an `Annotated` combines to."""
    result = Field()
    for item in metadata:
        if isinstance(item, Field):
            result = item.over(result)
    return result


IPv4Address = Annotated[str, Field(pattern=IPV4, max_length=15)]
MacAddress = Annotated[str, Field(pattern=MAC, max_length=17)]
ObjectName = Annotated[str, Field(pattern=DNS_SUBDOMAIN, min_length=1, max_length=253)]
NamespaceName = Annotated[str, Field(pattern=DNS_LABEL, min_length=1, max_length=63)]
DataKey = Annotated[str, Field(pattern=DATA_KEY, min_length=1, max_length=253)]
LabelKey = Annotated[str, Field(pattern=LABEL_KEY, min_length=1, max_length=317)]
LabelValue = Annotated[str, Field(pattern=LABEL_VALUE, max_length=MAX_LABEL_VALUE)]
ProviderName = Annotated[LabelValue, Field(min_length=1)]
Time = Annotated[str, Field(format="date-time", max_length=64)]
Message = Annotated[str, Field(max_length=MAX_MESSAGE)]
HttpUrl = Annotated[str, Field(pattern=HTTP_URL, min_length=1, max_length=2048)]
ImageReference = Annotated[str, Field(min_length=1, max_length=1024)]
KubernetesVersion = Annotated[str, Field(pattern=RELEASE_VERSION, max_length=64)]
HostKey = Annotated[str, Field(pattern=HOST_KEY, max_length=4096)]
DiskSize = Annotated[int | str, Field(pattern=DISK_SIZE, max_length=32, minimum=0)]
Int32 = Annotated[int, Field(format="int32")]
Count = Annotated[int, Field(minimum=0)]


def is_provider_name(text: str) -> bool:
    """Return whether a text is a ProviderName: an annotation may have any value."""
    return 0 < len(text) <= MAX_LABEL_VALUE and re.fullmatch(LABEL_VALUE, text) is not None


MAX_EVIDENCE: Final = 32


class Evidence(ApiStruct, frozen=True, kw_only=True):
    """Evidence of a step: the observation, its time (RFC 3339), and its source."""

    what: Annotated[str, Field("Observation, such as PowerState=Off.")]
    at: Annotated[Time, Field("Time of the observation, by the observer's clock.")]
    where: Annotated[str, Field("Source of the observation: a URL, a file, an object.", max_length=2048)]


class Cause(ApiStruct, frozen=True, kw_only=True):
    """The objects or values that a reason is about, for programs: the message has the same for people."""

    code: Annotated[str, Field("Cause within the reason, in CamelCase.", min_length=1, max_length=256)]
    about: Annotated[
        dict[str, Annotated[str, Field(max_length=1024)]],
        Field("Subject of the cause, by kind: secret (NAMESPACE/NAME), keys, credential, instance.", max_properties=16),
    ] = {}
