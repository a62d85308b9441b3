"""The parts of a status for programs: the evidence of a step, and the subject of a reason."""

from __future__ import annotations

from typing import Annotated, Final

from unbounded.api.base import ApiStruct
from unbounded.api.fields import Field, Time

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
