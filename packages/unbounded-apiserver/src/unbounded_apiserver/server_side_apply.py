"""Server-side apply of a request: from the bytes of an apply configuration to the resulting object."""

from __future__ import annotations

from typing import Final

import msgspec

from unbounded_apiserver.decoding import RequestDocument
from unbounded_apiserver.managed_fields import applying
from unbounded_apiserver.managed_fields.applying import KUBECTL, LAST_APPLIED, ApplyResult, Conflicts, last_applied
from unbounded_apiserver.managed_fields.owners import APPLY, FieldManager, ManagedFields
from unbounded_apiserver.managed_fields.typed import Mistyped
from unbounded_apiserver.options import WriteOptions
from unbounded_apiserver.status import StatusError, bad_request
from unbounded_apiserver.types import Object, Resource

_IDENTITY: Final = frozenset({"name", "namespace", "uid", "resourceVersion"})


def decode(resource: Resource, document: RequestDocument, options: WriteOptions, subresource: str) -> Object:
    """Decode an apply configuration without the fields that this subresource cannot write. Raises StatusError (400)."""
    _check_repeated(document, options)
    config = document.value
    if not isinstance(config, dict):
        raise bad_request("error decoding YAML: the document is not an object")
    version, kind = config.get("apiVersion") or "", config.get("kind") or ""
    if kind != resource.kind:
        group, _, name = str(version).rpartition("/")
        raise bad_request(f"invalid object type: {group}/{name}, Kind={kind}")
    if version != resource.api_version:
        why = f"Specified patch version: {version}, expected: {resource.api_version}"
        raise bad_request(f"Incorrect version specified in apply patch. {why}")
    meta = config.get("metadata") or {}
    if not isinstance(meta, dict):
        raise bad_request("metadata of the configuration is not an object")
    if meta.get("managedFields") is not None:
        raise bad_request("metadata.managedFields must be nil")
    if subresource:
        if resource.custom:  # a subresource of a built-in type may be written together with labels and the like
            meta = {k: v for k, v in meta.items() if k in _IDENTITY}
        config = {k: v for k, v in config.items() if k in {"apiVersion", "kind", "status"}}
    elif "status" in resource.subresources:
        config.pop("status", None)
    config["metadata"] = meta
    return config


def _check_repeated(document: RequestDocument, options: WriteOptions) -> None:
    if not document.duplicate_keys or options.validation == "Ignore":
        return
    if options.validation == "Strict":
        lines = "\n  ".join(("yaml: unmarshal errors:", *document.duplicate_keys))
        raise bad_request(f"error strict decoding YAML: error converting YAML to JSON: {lines}")
    options.warnings.extend(document.duplicate_keys)


def apply(
    resource: Resource,
    live: Object,
    owners: ManagedFields,
    config: Object,
    options: WriteOptions,
    subresource: str,
    time: str,
) -> ApplyResult:
    """Return the object with the configuration merged into it. Raises StatusError (400, 409)."""
    kind = resource.type
    manager = FieldManager(options.manager or "", APPLY, subresource)
    try:
        done = applying.apply(
            kind.merge_fields,
            live,
            owners,
            kind.empty(),
            config,
            manager,
            version=resource.api_version,
            time=time,
            force=options.force,
        )
        return _with_last_applied(done, config, manager, live)
    except RecursionError as error:
        raise bad_request("exceeded max depth") from error
    except Conflicts as error:
        raise StatusError(409, "Conflict", str(error), details={"causes": error.causes}) from error
    except Mistyped as error:
        meta = config["metadata"]
        what = f"{meta.get('namespace', '')}/{meta.get('name', '')}"
        version = f"{resource.group}/{resource.version}, Kind={resource.kind}"
        raise bad_request(f"failed to create typed patch object ({what}; {version}): {error}") from error


def _with_last_applied(done: ApplyResult, config: Object, manager: FieldManager, live: Object) -> ApplyResult:
    """Update the annotation of a client-side apply, so that kubectl can return to client-side apply."""
    if manager.name != KUBECTL or manager.subresource or last_applied(live) is None:
        return done
    meta = done.obj["metadata"]
    annotations = meta.get("annotations") or {}
    if not isinstance(annotations, dict):
        return done  # the write is rejected because of it
    text = msgspec.json.encode(config).decode() + "\n"
    return ApplyResult(
        {**done.obj, "metadata": meta | {"annotations": annotations | {LAST_APPLIED: text}}}, done.owners
    )
