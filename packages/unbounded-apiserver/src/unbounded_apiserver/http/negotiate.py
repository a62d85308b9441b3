"""Content negotiation."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from unbounded_apiserver import status

JSON: Final = "application/json"
YAML: Final = "application/yaml"
DISCOVERY: Final = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"
_TRANSFORMS: Final = frozenset({"Table", "PartialObjectMetadata", "PartialObjectMetadataList"})
_VERSIONS: Final = frozenset({"v1", "v1beta1"})


@dataclass(frozen=True)
class AnswerForm:
    """The form of an answer: the object itself, or a Table or PartialObjectMetadata in a version of meta.k8s.io."""

    yaml: bool = False
    convert: str = ""
    version: str = ""

    @property
    def media_type(self) -> str:
        return YAML if self.yaml else JSON


PLAIN: Final = AnswerForm()


@lru_cache(maxsize=256)
def negotiate_form(accept: str) -> AnswerForm:
    """Return the first acceptable form. Raises StatusError (406) if there is none."""
    for media, parameters in _clauses(accept):
        if media not in {JSON, YAML, "*/*", "application/*"}:
            continue
        yaml = media == YAML
        convert = parameters.get("as", "")
        if not convert:
            return AnswerForm(yaml)
        group, version = parameters.get("g"), parameters.get("v", "")
        if convert in _TRANSFORMS and group == "meta.k8s.io" and version in _VERSIONS:
            return AnswerForm(yaml, convert, version)
    raise status.not_acceptable()


def accepts_aggregated(accept: str) -> bool:
    """Return whether the client accepts aggregated discovery. Raises StatusError (406)."""
    for media, parameters in _clauses(accept):
        if parameters.get("as") == "APIGroupDiscoveryList":
            if media == JSON and (parameters.get("g"), parameters.get("v")) == ("apidiscovery.k8s.io", "v2"):
                return True
        elif media in {JSON, "*/*", "application/*", YAML}:
            return False
    raise status.not_acceptable()


def _clauses(accept: str) -> list[tuple[str, dict[str, str]]]:
    """Return media types with their parameters, the preferred ones first."""
    found = []
    for clause in (accept or "*/*").split(","):
        media, *rest = (part.strip() for part in clause.split(";"))
        parameters = dict(part.split("=", 1) for part in rest if "=" in part)
        found.append((media.lower(), parameters))
    return sorted(found, key=lambda item: -_quality(item[1]))


def _quality(parameters: dict[str, str]) -> float:
    try:
        return float(parameters.get("q", "1"))
    except ValueError:
        return 0.0
