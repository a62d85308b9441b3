"""Creates, updates and patches: a sequence of steps on an object, each on the result of the one before."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from datetime import datetime
from functools import partial
from types import MappingProxyType
from typing import Any, Final

import msgspec

from unbounded_apiserver import (
    decoding,
    field_errors,
    gojson,
    metadata,
    name_validation,
    patches,
    scale,
    server_side_apply,
    status,
)
from unbounded_apiserver.builtin_resources import NAMESPACES
from unbounded_apiserver.collection import StoredObject
from unbounded_apiserver.decoding import RequestDocument
from unbounded_apiserver.managed_fields import ownership
from unbounded_apiserver.managed_fields.encoding import NO_OWNERS, UPDATE, FieldManager, ManagedFields
from unbounded_apiserver.options import WriteOptions
from unbounded_apiserver.resource_model import (
    Object,
    Resource,
    ScalePaths,
    decode_stored,
    is_stored_version,
    served_body,
    to_stored,
)
from unbounded_apiserver.schema import FieldError
from unbounded_apiserver.store import NotStored, Store

Admit = Callable[[Object, Object | None], None]
NAME_ATTEMPTS: Final = 8
OBJECT_BYTES: Final = 3 * 2**19  # etcd's default limit


class WriteResult(msgspec.Struct, frozen=True):
    """The result of a write: the object's JSON in the version of the request."""

    body: bytes
    created: bool = False


class WriteTarget(msgspec.Struct, frozen=True):
    """The object that a request names; `subresource` is '' or one of the resource's parts."""

    resource: Resource
    namespace: str
    name: str
    subresource: str = ""

    @property
    def key(self) -> str:
        return self.resource.key(self.namespace, self.name)


class Writes:
    """Writes of one store."""

    def __init__(
        self, store: Store, now: Callable[[], datetime], admission: Mapping[str, Admit] = MappingProxyType({})
    ) -> None:
        """Configure the writes of one store.

        Args:
            admission: by resource, completes or rejects new and changed objects; other resources have no extra cost.
        """
        self._store = store
        self._now = now
        self._admission = admission

    async def create(
        self, resource: Resource, namespace: str, document: RequestDocument, options: WriteOptions
    ) -> WriteResult:
        """Create an object. Raises StatusError."""
        obj = decoding.decode_object(resource, document, options)
        return await self.create_object(resource, namespace, obj, options)

    def review(self, resource: Resource, subresource: str, document: RequestDocument, options: WriteOptions) -> Object:
        """Return a review as it would be created, with its field owner; it is not stored. Raises StatusError."""
        obj = decoding.decode_object(resource, document, options)
        obj["metadata"].pop("managedFields", None)
        time = metadata.format_time(self._now())
        owners = ownership.after_create(resource, obj, options.manager, time, subresource)
        if owners:
            obj["metadata"]["managedFields"] = owners.shown()
        return obj

    async def create_object(
        self,
        resource: Resource,
        namespace: str,
        obj: Object,
        options: WriteOptions,
        applied: ManagedFields | None = None,
    ) -> WriteResult:
        """Create from an object that is in its type's form already; `applied` are its owners after an apply."""
        meta = obj["metadata"]
        meta.pop("managedFields", None)
        if meta.get("resourceVersion"):
            raise status.bad_request("resourceVersion should not be set on objects to be created")
        set_namespace(resource, namespace, meta)
        self._check_creatable(resource, namespace, meta.get("name") or meta.get("generateName", ""))
        metadata.initialize(meta, self._now(), generation=resource.type.generation)
        generated = not meta.get("name") and bool(meta.get("generateName"))
        if generated:
            meta["name"] = metadata.generated_name(meta["generateName"])
        owners = applied
        if owners is None:
            owners = ownership.after_create(resource, obj, options.manager, meta["creationTimestamp"])
        if (complete := self._admission.get(resource.name)) is not None:
            complete(obj, None)
        if options.prepare is not None:
            options.prepare(obj, None)
        resource.type.prepare(obj, None)
        _raise_if(resource, obj, _errors(resource, obj, None))
        if options.admit is not None:
            options.admit(obj, None)
        options.warnings.extend([*metadata.finalizer_warnings(meta), *resource.type.advise(obj)])
        to_stored(resource, obj)
        for _ in range(NAME_ATTEMPTS if generated else 1):
            key = resource.key(namespace, meta["name"])
            waits = self._store.is_writing(resource.name, key)
            current = (
                await self._store.wait_current(resource.name, key) if waits else self._store.get(resource.name, key)
            )
            if current is None:
                if waits:
                    self._check_creatable(
                        resource, namespace, meta["name"]
                    )  # again, as the state may have changed meanwhile
                return await self._insert(resource, key, obj, owners, options)
            taken = meta["name"]
            if generated:
                meta["name"] = metadata.generated_name(meta["generateName"])
        terminating = current is not None and "deletionTimestamp" in current.decode()["metadata"]
        raise status.already_exists(resource.group, resource.plural, taken, terminating=terminating)

    async def _insert(
        self, resource: Resource, key: str, obj: Object, owners: ManagedFields, options: WriteOptions
    ) -> WriteResult:
        if options.dry_run:
            return WriteResult(served_body(resource, _dry_run_body(obj, owners, 0)), created=True)
        record = await wait_stored(self._store.write(resource.name, key, partial(_encoded, obj, owners), owners))
        return WriteResult(served_body(resource, record.body), created=True)

    async def update(self, target: WriteTarget, document: RequestDocument, options: WriteOptions) -> WriteResult:
        """Replace an object. Raises StatusError."""
        resource = target.resource
        obj = decoding.decode_object(resource, document, options)
        meta = obj["metadata"]
        _check_name(target, meta)
        set_namespace(resource, target.namespace, meta)
        current = await self._store.wait_current(resource.name, target.key)
        if current is None:
            if meta.get("uid"):  # the client means an object that is gone
                raise status.conflict(resource.group, resource.plural, target.name, _wrong_uid(target, meta["uid"], ""))
            if not resource.type.create_on_update or target.subresource:
                raise status.not_found(resource.group, resource.plural, target.name)
            return await self.create_object(resource, target.namespace, obj, options)
        expected = _expected_revision(target, meta)
        old = decode_stored(resource, current)
        _check_uid(target, meta, old)
        return await self._replace(target, obj, old, current, expected, options)

    async def patch(self, target: WriteTarget, kind: str, data: bytes, options: WriteOptions) -> WriteResult:
        """Patch an object. Raises StatusError."""
        resource = target.resource
        current = await self._found(target)
        live = decode_stored(resource, current)
        if kind == patches.JSON and current.owners:  # the one kind of patch that can test existing fields
            live["metadata"]["managedFields"] = current.owners.shown()
        obj = _patched(resource, kind, data, live, options)
        meta = obj["metadata"]
        _check_name(target, meta)
        set_namespace(resource, target.namespace, meta)
        old = decode_stored(resource, current)
        return await self._replace(target, obj, old, current, _expected_revision(target, meta), options)

    async def apply(self, target: WriteTarget, document: RequestDocument, options: WriteOptions) -> WriteResult:
        """Server-side apply: create the object, or change the fields that the manager owns. Raises StatusError."""
        resource = target.resource
        config = server_side_apply.decode(resource, document, options, target.subresource)
        current = await self._store.wait_current(resource.name, target.key)
        if current is None and target.subresource:
            raise status.not_found(resource.group, resource.plural, target.name)
        if current is None and (uid := config["metadata"].get("uid")):
            why = f"uid mismatch: the provided object specified uid {uid}, and no existing object was found"
            raise status.conflict(resource.group, resource.plural, target.name, why)
        live = resource.type.empty() if current is None else decode_stored(resource, current)
        time = metadata.format_time(self._now())
        owners = NO_OWNERS if current is None else current.owners
        done = server_side_apply.apply(resource, live, owners, config, options, target.subresource, time)
        obj = decoding.decode_patched(resource, done.obj, options)
        meta = obj["metadata"]
        _check_name(target, meta)
        set_namespace(resource, target.namespace, meta)
        if current is None:
            return await self.create_object(resource, target.namespace, obj, options, done.owners)
        old = decode_stored(resource, current)
        return await self._replace(target, obj, old, current, metadata.revision_of(meta), options, done.owners)

    async def update_scale(self, target: WriteTarget, document: RequestDocument, options: WriteOptions) -> WriteResult:
        """Replace the Scale of an object. Raises StatusError."""
        given = decoding.decode_object(scale.SCALES, document, options)
        return await self._scale(target, given, await self._found(target), options)

    async def patch_scale(self, target: WriteTarget, kind: str, data: bytes, options: WriteOptions) -> WriteResult:
        """Patch the Scale of an object. Raises StatusError."""
        current = await self._found(target)
        live = scale.scale_to_change(_paths(target), decode_stored(target.resource, current))
        return await self._scale(target, _patched(scale.SCALES, kind, data, live, options), current, options)

    async def _found(self, target: WriteTarget) -> StoredObject:
        current = await self._store.wait_current(target.resource.name, target.key)
        if current is None:
            raise status.not_found(target.resource.group, target.resource.plural, target.name)
        return current

    async def _scale(
        self, target: WriteTarget, given: Object, current: StoredObject, options: WriteOptions
    ) -> WriteResult:
        """Write the replicas of a Scale into its object; return the Scale as it is then.

        As in Kubernetes, a change takes the replicas from their owner, and 0 has no owner.
        """
        resource, paths, meta = target.resource, _paths(target), given["metadata"]
        _check_name(target, meta)
        set_namespace(resource, target.namespace, meta)
        obj, old = decode_stored(resource, current), decode_stored(resource, current)
        _check_uid(target, meta, old)
        scale.set_replicas(paths, obj, given)
        owners = current.owners
        if obj != old and options.manager is not None:
            owner = FieldManager(options.manager, UPDATE, "scale", resource.api_version)
            is_owned = given["spec"].get("replicas", 0) != 0
            owners = ownership.with_path(owners, scale.owner_path(paths), owner if is_owned else None)
        done = await self._replace(target, obj, old, current, metadata.revision_of(meta), options, owners)
        return WriteResult(msgspec.json.encode(scale.scale_of(paths, msgspec.json.decode(done.body))))

    async def edit(self, target: WriteTarget, edit: Callable[[Object], None]) -> StoredObject | None:
        """Edit a stored object on behalf of the server itself; None if the object does not exist (any more).

        The rules are not checked, and an edit without a change writes nothing. Raises NotStored.
        """
        resource = target.resource
        current = await self._store.wait_current(resource.name, target.key)
        if current is None:
            return None
        obj, old = current.decode(), current.decode()
        edit(obj)
        if metadata.equal(obj, old):
            return current
        if is_deletion_complete(obj):
            return await wait_stored(self._store.remove(resource.name, current))
        owners = ownership.after_edit(resource, obj, old, current.owners)
        return await wait_stored(self._store.write(resource.name, current.key, partial(metadata.encode, obj), owners))

    async def _replace(
        self,
        target: WriteTarget,
        obj: Object,
        old: Object,
        current: StoredObject,
        expected: int,
        options: WriteOptions,
        applied: ManagedFields | None = None,
    ) -> WriteResult:
        """Replace `old` by `obj`. The caller has awaited nothing since it read `current`.

        `applied` are its owners after an apply.
        """
        resource, kind = target.resource, target.resource.type
        if expected and expected != current.revision:
            raise status.conflict(resource.group, resource.plural, target.name)
        if resource.custom and obj["kind"] != resource.kind:
            _raise_if(resource, obj, _errors(resource, obj, old))
        given = obj["metadata"].pop("managedFields", None)
        metadata.carry_over(obj["metadata"], old["metadata"])
        part = resource.subresources.get(target.subresource)
        if part is None and (complete := self._admission.get(resource.name)) is not None:
            complete(obj, old)
        if options.prepare is not None:
            options.prepare(obj, old)
        if part is None:
            kind.prepare(obj, old)
        else:
            part.prepare(obj, old, self._now())
        errors = metadata.validate_update(obj["metadata"], old["metadata"])
        more = part.rules(obj, old) if part is not None else []
        _raise_if(resource, obj, [*errors, *errors, *_errors(resource, obj, old, options.warnings), *more])
        if options.admit is not None:
            options.admit(obj, old)
        warnings = metadata.finalizer_warnings(obj["metadata"], old["metadata"])
        options.warnings.extend([*warnings, *resource.type.advise(obj)])
        owners = applied
        if owners is None:
            owners = self._owners_after(target, obj, old, current.owners, given, options)
        if owners.equal_but_times(current.owners) and metadata.equal(obj, old) and is_stored_version(resource, current):
            return WriteResult(served_body(resource, current.body))
        to_stored(resource, obj)
        if options.dry_run or is_deletion_complete(obj):
            answer = _dry_run_body(obj, owners, current.revision)
            if not options.dry_run:
                await wait_stored(self._store.remove(resource.name, current))
            return WriteResult(served_body(resource, answer))
        bare = partial(_encoded, obj, owners)
        record = await wait_stored(self._store.write(resource.name, current.key, bare, owners))
        return WriteResult(served_body(resource, record.body))

    def _check_creatable(self, resource: Resource, namespace: str, name: str) -> None:
        """Check whether an object may be created there. Raises StatusError (403, 404)."""
        if not resource.accepting:
            why = "create not allowed while custom resource definition is terminating"
            raise status.forbidden(resource.group, resource.plural, name, why)
        if not resource.namespaced:
            return
        record = self._store.get(NAMESPACES.name, namespace)
        if record is None:
            raise status.not_found("", NAMESPACES.plural, namespace)
        if b'"deletionTimestamp"' in record.bare and "deletionTimestamp" in record.decode()["metadata"]:
            why = f"unable to create new content in namespace {namespace} because it is being terminated"
            cause = {
                "reason": "NamespaceTerminating",
                "message": f"namespace {namespace} is being terminated",
                "field": "metadata.namespace",
            }
            raise status.forbidden(resource.group, resource.plural, name, why, [cause])

    def _owners_after(
        self, target: WriteTarget, obj: Object, old: Object, owners: ManagedFields, given: Any, options: WriteOptions
    ) -> ManagedFields:
        time = metadata.format_time(self._now())
        return ownership.after_update(
            target.resource, obj, old, owners, options.manager, target.subresource, given, time
        )


def _patched(resource: Resource, kind: str, data: bytes, live: Object, options: WriteOptions) -> Object:
    """Return the object that a patch makes of `live`, in the form of its type. Raises StatusError."""
    try:
        patched = patches.apply(kind, data, live, resource.type.shape)
    except RecursionError as error:
        raise status.bad_request("exceeded max depth") from error
    shown = field_errors.go_text(gojson.decode(data)) if kind == patches.STRATEGIC else ""
    complaints = patches.strict_errors(kind, data) if options.validation != "Ignore" else ()
    return decoding.decode_patched(resource, patched, options, shown, complaints)


def _paths(target: WriteTarget) -> ScalePaths:
    if target.resource.scale is None:
        raise status.not_found(target.resource.group, target.resource.plural, target.name)
    return target.resource.scale


async def wait_stored(future: asyncio.Future[StoredObject]) -> StoredObject:
    """Wait for a write, which cannot be cancelled. Raises StatusError (500) if it was not stored."""
    try:
        return await future
    except NotStored as error:
        raise status.internal(str(error)) from error


def _encoded(obj: Object, owners: ManagedFields, revision: int) -> bytes:
    """Return the bytes that a client's write stores.

    Raises StatusError (413), as many patches can make an object of any size.
    """
    bare = metadata.encode(obj, revision)
    if len(bare) + owners.size > OBJECT_BYTES:
        raise status.too_large(OBJECT_BYTES)
    return bare


def is_deletion_complete(obj: Object) -> bool:
    """Return whether an object is being deleted and has no finalizer or grace period left."""
    meta = obj["metadata"]
    finalizers = meta.get("finalizers") or (obj["kind"] == "Namespace" and (obj.get("spec") or {}).get("finalizers"))
    return "deletionTimestamp" in meta and not finalizers and not meta.get("deletionGracePeriodSeconds")


def _expected_revision(target: WriteTarget, meta: Object) -> int:
    """Return the revision that a client wants to replace, 0 for any. Raises StatusError (400, 422)."""
    expected = metadata.revision_of(meta)
    if not expected and not target.resource.type.unconditional_update:
        errors = [field_errors.invalid("metadata.resourceVersion", 0, "must be specified for an update")]
        raise status.invalid(target.resource.group, target.resource.plural, target.name, errors)
    return expected


def _dry_run_body(obj: Object, owners: ManagedFields, revision: int) -> bytes:
    """Return the answer of a write that is not stored. Raises StatusError (413)."""
    bare = _encoded(obj, owners, revision)
    if not owners:
        return bare
    meta = {**obj["metadata"], "managedFields": owners.shown()}
    return metadata.encode({**obj, "metadata": meta}, revision)


def _check_name(target: WriteTarget, meta: Object) -> None:
    name = meta.get("name", "")
    if name and name != target.name:
        why = f"the name of the object ({name}) does not match the name on the URL ({target.name})"
        raise status.bad_request(why)
    meta["name"] = target.name


def _check_uid(target: WriteTarget, meta: Object, old: Object) -> None:
    """Raise StatusError (409) if a client means another object of this name."""
    uid = old["metadata"]["uid"]
    if meta.get("uid") and meta["uid"] != uid:
        resource = target.resource
        raise status.conflict(resource.group, resource.plural, target.name, _wrong_uid(target, meta["uid"], uid))


def set_namespace(resource: Resource, namespace: str, meta: Object) -> None:
    """Give an object the namespace of the request. Raises StatusError (400) if it names another one."""
    given = meta.get("namespace", "")
    if given and given != namespace and resource.namespaced:
        raise status.bad_request(
            "the namespace of the provided object does not match the namespace sent on the request"
        )
    meta.pop("namespace", None)
    if resource.namespaced:
        meta["namespace"] = namespace


def _errors(resource: Resource, obj: Object, old: Object | None, warnings: list[str] | None = None) -> list[FieldError]:
    if resource.custom and obj["kind"] != resource.kind:
        return [field_errors.invalid("kind", obj["kind"], f"must be {resource.kind}")]
    check = resource.type.name_check if old is None else _any_name
    errors = metadata.validate(obj["metadata"], check)
    return [*errors, *resource.type.validate(obj, old, warnings, errors)]


def _any_name(name: str) -> tuple[str, ...]:
    """Accept any name: an update does not validate the name again."""
    return name_validation.path_segment(name)


def _raise_if(resource: Resource, obj: Object, errors: list[FieldError]) -> None:
    if errors:
        name = obj["metadata"].get("name", "")
        group = resource.group if resource.view is None else resource.view.source.group
        raise status.invalid(group, obj["kind"], name, errors)


def _wrong_uid(target: WriteTarget, expected: Any, uid: str) -> str:
    return (
        f"StorageError: invalid object, Code: 4, Key: /registry/{_storage_prefix(target.resource)}/{target.key}, "
        f"ResourceVersion: 0, AdditionalErrorMsg: Precondition failed: UID in precondition: {expected}, "
        f"UID in object meta: {uid}"
    )


def _storage_prefix(resource: Resource) -> str:
    """Return Kubernetes' storage prefix: by group only for definitions and the resources that they define."""
    if resource.custom or resource.group == "apiextensions.k8s.io":
        return f"{resource.group}/{resource.plural}"
    return {"nodes": "minions", "services": "services/specs"}.get(resource.name, resource.plural)
