"""Metadata of objects: the fields that the server sets, the values that are valid, and the changes that are allowed."""

from __future__ import annotations

import os
import random
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Any, Final

import msgspec

from unbounded_apiserver import field_errors, name_validation, type_descriptors
from unbounded_apiserver.schema import FieldError
from unbounded_apiserver.status import bad_request
from unbounded_apiserver.type_descriptor_parser import OBJECT_META

ANNOTATIONS_BYTES: Final = 256 * 1024
ORPHAN: Final = "orphan"
FOREGROUND: Final = "foregroundDeletion"
STANDARD_FINALIZERS: Final = frozenset({ORPHAN, FOREGROUND, "kubernetes"})
UNQUALIFIED: Final = "name is neither a standard finalizer name nor is it fully qualified"
_FIRST: Final = ("name", "namespace", "uid", "resourceVersion")
_HEAD_OF_METADATA: Final = dict.fromkeys(_FIRST, "")
_encode: Final = msgspec.json.Encoder().encode
_IMMUTABLE: Final = ("name", "namespace", "uid", "creationTimestamp", "deletionTimestamp", "deletionGracePeriodSeconds")
_OWNER_ORDER: Final = ("apiVersion", "kind", "name", "uid", "controller", "blockOwnerDeletion")
_RANDOM: Final = random.Random(os.urandom(32))  # noqa: S311 - uids and names are unique, not secret
_UID_BITS: Final = 4 << 76 | 2 << 62  # of a UUID: its version and its variant
_RANDOM_BITS: Final = (1 << 128) - 1 ^ (15 << 76 | 3 << 62)
_LETTERS: Final = "bcdfghjklmnpqrstvwxz2456789"  # as in Kubernetes: no vowels, so that no words appear

Object = dict[str, Any]


def format_time(moment: datetime) -> str:
    """Format a time as metav1.Time: RFC 3339 in UTC with seconds."""
    return _timestamp(int(moment.timestamp()))


@lru_cache(maxsize=8)
def _timestamp(seconds: int) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def parse_time(text: str | None) -> datetime | None:
    """Parse an RFC 3339 time; None for one that Python cannot represent, such as the year 0."""
    try:
        found = datetime.fromisoformat((text or "").replace("Z", "+00:00"))
    except ValueError:
        return None
    return found if found.tzinfo is not None else None


def encode(obj: Object, revision: int) -> bytes:
    """Return the stored bytes.

    apiVersion, kind and metadata come first; in metadata, name, namespace, uid and resourceVersion do. That order lets
    a reader replace apiVersion and resourceVersion without decoding (see store.with_revision). A revision of 0 is left
    out, for objects that are not stored.
    """
    meta = _HEAD_OF_METADATA | obj["metadata"]  # the keys of the head keep their positions
    meta["resourceVersion"] = str(revision) if revision else ""
    for key in _FIRST:
        if not meta[key]:
            del meta[key]
    return _encode({"apiVersion": obj["apiVersion"], "kind": obj["kind"], "metadata": None} | obj | {"metadata": meta})


def equal(new: Object, old: Object) -> bool:
    """Return whether two objects are equal except for the resourceVersion; 1, 1.0 and true differ."""
    left, right = without_revision(new), without_revision(old)
    return left == right and msgspec.json.encode(left, order="sorted") == msgspec.json.encode(right, order="sorted")


def without_revision(obj: Object) -> Object:
    return {**obj, "metadata": {k: v for k, v in obj["metadata"].items() if k != "resourceVersion"}}


def decode(obj: Object, unknown: list[str]) -> None:
    """Bring metadata into its type's form, in place.

    Raises:
        shapes.WrongType: with Go's message.
    """
    given = obj.get("metadata")
    if given is None:
        given = {}
    if not isinstance(given, dict):
        name = type_descriptors.go_type(OBJECT_META)
        what = "string" if isinstance(given, str) else "array" if isinstance(given, list) else "number"
        raise type_descriptors.WrongType(f"json: cannot unmarshal {what} into Go value of type {name}")
    obj["metadata"] = type_descriptors.decode(OBJECT_META, given, unknown, at="metadata")


def initialize(meta: Object, now: datetime, *, generation: bool) -> None:
    """Set the server's fields of a new object, in place."""
    for key in ("resourceVersion", "deletionTimestamp", "deletionGracePeriodSeconds", "generation", "selfLink"):
        meta.pop(key, None)
    meta["uid"] = new_uid()
    meta["creationTimestamp"] = format_time(now)
    if generation:
        meta["generation"] = 1


def new_uid() -> str:
    """Return a version 4 UUID (RFC 9562): its version and variant, and random bits."""
    text = (_RANDOM.getrandbits(128) & _RANDOM_BITS | _UID_BITS).to_bytes(16).hex()
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"


def generated_name(prefix: str) -> str:
    """Return the prefix, cut to fit, and five random letters."""
    return prefix[: 63 - 5] + "".join(_RANDOM.choices(_LETTERS, k=5))


def carry_over(meta: Object, old: Object) -> None:
    """Fill in fields that an update may leave out, and restore those that only the server sets, in place."""
    for key in ("uid", "deletionGracePeriodSeconds"):
        if key in old:
            meta.setdefault(key, old[key])
    if "deletionTimestamp" in old:
        meta["deletionTimestamp"] = old["deletionTimestamp"]
    for key in ("creationTimestamp", "generation"):
        meta.pop(key, None)
        if key in old:
            meta[key] = old[key]


def shorten_grace(meta: Object, seconds: int | None, now: datetime) -> None:
    """Shorten the grace period of an object that is being deleted, in place; never extend it or end it in the past."""
    left = meta.get("deletionGracePeriodSeconds")
    if left is None or seconds is None or (seconds := 1 if seconds < 0 else seconds) >= left:
        return
    end = datetime.fromisoformat(meta["deletionTimestamp"]) - timedelta(seconds=left - seconds)
    if end < now:
        end, seconds = now, min(seconds, 1)
    meta["deletionTimestamp"], meta["deletionGracePeriodSeconds"] = format_time(end), seconds


def validate(meta: Mapping[str, Any], name_check: name_validation.Check) -> list[FieldError]:
    """Return the errors of any object's metadata; names are checked by `name_check`."""
    errors: list[FieldError] = []
    name, prefix = meta.get("name", ""), meta.get("generateName", "")
    if prefix:
        wrong = name_check(f"{prefix[:-2]}a" if len(prefix) > 1 and prefix.endswith("-") else prefix)
        errors += [field_errors.invalid("metadata.generateName", prefix, why) for why in wrong]
    if not name:
        errors.append(field_errors.required("metadata.name", "name or generateName is required"))
    elif wrong := name_check(name):
        errors += [field_errors.invalid("metadata.name", name, why) for why in wrong]
    errors += _common(meta)
    return errors + _finalizers(meta["finalizers"]) if meta.get("finalizers") else errors


def _finalizers(finalizers: Sequence[str]) -> list[FieldError]:
    where = "metadata.finalizers"
    errors = [
        field_errors.invalid(where, name, why) for name in finalizers for why in name_validation.qualified_name(name)
    ]
    if {ORPHAN, FOREGROUND} <= set(finalizers):
        errors.append(
            field_errors.invalid(where, finalizers, f"finalizer {ORPHAN} and {FOREGROUND} cannot be both set")
        )
    return errors


def unqualified_finalizers(meta: Mapping[str, Any]) -> list[FieldError]:
    """Report finalizers without a domain, which Kubernetes rejects except in its oldest kinds."""
    return [
        field_errors.invalid(f"metadata.finalizers[{index}]", name, UNQUALIFIED)
        for index, name in enumerate(meta.get("finalizers", ()))
        if "/" not in name and name not in STANDARD_FINALIZERS
    ]


def _common(meta: Mapping[str, Any]) -> list[FieldError]:
    errors: list[FieldError] = []
    for key, value in meta.get("labels", {}).items():
        if wrong := name_validation.qualified_name(key):
            errors += [field_errors.invalid("metadata.labels", key, why) for why in wrong]
        if wrong := name_validation.label_value(value):
            errors += [field_errors.invalid("metadata.labels", value, why) for why in wrong]
    if meta.get("annotations"):
        errors += _annotations(meta["annotations"])
    return errors + _owners(meta["ownerReferences"]) if meta.get("ownerReferences") else errors


def _annotations(annotations: Mapping[str, str]) -> list[FieldError]:
    errors = []
    size = 0
    for key, value in annotations.items():
        errors += [
            field_errors.invalid("metadata.annotations", key, why)
            for why in name_validation.qualified_name(key.lower())
        ]
        size += len(key.encode()) + len(value.encode())
    if size > ANNOTATIONS_BYTES:
        errors.append(field_errors.too_long("metadata.annotations", ANNOTATIONS_BYTES))
    return errors


def _owners(references: Sequence[Mapping[str, Any]]) -> list[FieldError]:
    where = "metadata.ownerReferences"
    errors: list[FieldError] = []
    controller = ""
    for reference in references:
        version = _version_of(reference["apiVersion"])
        if not version:
            why = "version must not be empty"
            errors.append(field_errors.invalid(f"{where}.apiVersion", reference["apiVersion"], why))
        empty = (key for key in ("kind", "name", "uid") if not reference.get(key))
        errors += [field_errors.invalid(f"{where}.{key}", "", "must not be empty") for key in empty]
        if (reference["apiVersion"].rpartition("/")[0], version, reference["kind"]) == ("", "v1", "Event"):
            why = "/v1, Kind=Event is disallowed from being an owner"
            errors.append(field_errors.invalid(where, _shown_owner(reference), why))
        if reference.get("controller"):
            other, controller = controller, controller or f"{reference['kind']}/{reference['name']}"
            if other:
                why = 'Only one reference can have Controller set to true. Found "true" in references for '
                why += f"{other} and {reference['kind']}/{reference['name']}"
                errors.append(field_errors.invalid(where, [_shown_owner(r) for r in references], why))
    return errors


def _version_of(api_version: str) -> str:
    """Return the version in `group/version` or `version`, '' where there is none."""
    return "" if api_version.count("/") > 1 else api_version.rpartition("/")[2]


def _shown_owner(reference: Mapping[str, Any]) -> Object:
    return {k: reference[k] for k in _OWNER_ORDER if k in reference}


def drop_repeated_owners(meta: Object, *, patched: bool) -> list[str]:
    """Drop duplicate owner references, in place; return the warnings for the client."""
    if "ownerReferences" not in meta:
        return []
    kept: list[Object] = []
    twice: list[str] = []
    for reference in meta["ownerReferences"]:
        if reference in kept:
            twice.append(reference["uid"])
        else:
            kept.append(reference)
    if not twice:
        return []
    meta["ownerReferences"] = kept
    when = " after mutating admission happens" if patched else ""
    return [
        f".metadata.ownerReferences contains duplicate entries{when}; API server dedups owner references in 1.20+, "
        "and may reject such requests as early as 1.24; please fix your requests; "
        f"duplicate UID(s) observed: {', '.join(twice)}"
    ]


def validate_update(meta: Mapping[str, Any], old: Mapping[str, Any]) -> list[FieldError]:
    """Return the errors of an update that changes immutable metadata."""
    errors = []
    if "deletionTimestamp" in old:
        added = [f for f in meta.get("finalizers", ()) if f not in old.get("finalizers", ())]
        if added:
            listed = ", ".join(f'"{f}"' for f in added)
            why = "no new finalizers can be added if the object is being deleted, found new finalizers "
            errors.append(field_errors.forbidden("metadata.finalizers", f"{why}[]string{{{listed}}}"))
    changed = (key for key in _IMMUTABLE if meta.get(key) != old.get(key))
    return errors + [field_errors.immutable(f"metadata.{key}", meta.get(key)) for key in changed] + _common(meta)


def finalizer_warnings(meta: Mapping[str, Any], old: Mapping[str, Any] | None = None) -> list[str]:
    """Warn of finalizers without a domain, as Kubernetes does."""
    if not meta.get("finalizers"):
        return []
    before = (old or {}).get("finalizers", ())
    return [
        f'metadata.finalizers: "{f}": prefer a domain-qualified finalizer name to avoid accidental conflicts '
        "with other finalizer writers"
        for f in meta["finalizers"]
        if "/" not in f and f not in STANDARD_FINALIZERS and f not in before
    ]


def revision_of(meta: Mapping[str, Any]) -> int:
    """Return the resourceVersion that a client sent, 0 if it sent none."""
    text = meta.get("resourceVersion", "")
    if not text:
        return 0
    if not (text.isascii() and text.isdigit()):
        raise bad_request(f'strconv.ParseUint: parsing "{text}": invalid syntax')
    return int(text)
