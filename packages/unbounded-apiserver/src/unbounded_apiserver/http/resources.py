"""Requests on resources: each verb, from the parsed request to its answer."""

from __future__ import annotations

import dataclasses
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from itertools import chain
from typing import Final

import msgspec
from aiohttp import web
from msgspec.structs import replace

from unbounded_apiserver import decoding, metadata, name_validation, patches, scale, status
from unbounded_apiserver.access.node_authorizer import node_of
from unbounded_apiserver.access.node_restriction import NodeRestriction
from unbounded_apiserver.access.rbac_authorizer import EscalationCheck
from unbounded_apiserver.access.resource_types import GROUP as ROLES_GROUP
from unbounded_apiserver.access.reviews import Answer
from unbounded_apiserver.access.signer_rights import SignerRights, set_requesting_user
from unbounded_apiserver.admission.params import ParamRights
from unbounded_apiserver.admission.policy_types import GROUP as POLICIES_GROUP
from unbounded_apiserver.auth import AuthAttributes, AuthChain
from unbounded_apiserver.certificates.csr_types import REQUESTS
from unbounded_apiserver.http import paths, render
from unbounded_apiserver.http.api_call import (
    ApiCall,
    negotiate_form,
    read_body,
    read_configuration,
    read_delete_options,
    read_object,
)
from unbounded_apiserver.http.audit import AuditEntry
from unbounded_apiserver.http.kubelet_client import KubeletClient
from unbounded_apiserver.http.kubelet_proxy import KubeletProxy
from unbounded_apiserver.http.paths import NoSuchPath
from unbounded_apiserver.http.policy_checks import PolicyChecks
from unbounded_apiserver.http.reply import HttpReply
from unbounded_apiserver.http.streams import EventLines, WatchStream
from unbounded_apiserver.options import DeleteOptions, ListOptions, WriteOptions, check_timeout, first, flag, revision
from unbounded_apiserver.reads import ObjectPage
from unbounded_apiserver.resource_model import SCALE, Object, Resource, ResourcePath, decode_stored, served_body
from unbounded_apiserver.server_core import ServerCore
from unbounded_apiserver.workloads.evictions import Evictions, accept_earlier_version
from unbounded_apiserver.workloads.pods import EVICTIONS
from unbounded_apiserver.writes import WriteResult, WriteTarget

_GUARDED: Final = frozenset({ROLES_GROUP, POLICIES_GROUP, REQUESTS.group})  # groups with checks of their own

Handler = Callable[[ApiCall, ResourcePath], Awaitable[HttpReply | web.StreamResponse]]
VERBS: Final[Mapping[tuple[str, bool], str]] = {
    ("GET", False): "list",
    ("HEAD", False): "list",
    ("POST", False): "create",
    ("DELETE", False): "deletecollection",
    ("GET", True): "get",
    ("HEAD", True): "get",
    ("POST", True): "create",
    ("PUT", True): "update",
    ("PUT", False): "update",
    ("PATCH", True): "patch",
    ("PATCH", False): "patch",
    ("DELETE", True): "delete",
}


class Resources:
    """The verbs on the resources of a server, with their authorization."""

    def __init__(
        self,
        core: ServerCore,
        guard: AuthChain,
        answers: Mapping[str, Answer],
        kubelets: KubeletClient,
        note: Callable[[AuditEntry], None],
    ) -> None:
        self._core = core
        self._guard = guard
        self._answers = answers
        self._escalation = EscalationCheck(core.roles, guard)
        self._signers = SignerRights(guard)
        self._nodes = NodeRestriction(core.store, guard.decide)
        self._evictions = Evictions(core.store, core.budgets, core.writes, core.deletes, core.now)
        self._policy_checks = PolicyChecks(core.policies, guard)
        self._kubelets = KubeletProxy(core.store, guard, self._policy_checks, kubelets, note)
        self._param_rights = ParamRights(core.store, core.catalog, guard.decide)
        self._lines = EventLines()
        self._streams: set[WatchStream] = set()
        self._handlers: Mapping[str, Handler] = {
            "get": self._get,
            "list": self._list,
            "create": self._create,
            "update": self._update,
            "patch": self._patch,
            "delete": self._delete,
            "deletecollection": self._delete_collection,
        }

    def watches(self) -> list[Resource]:
        """Return the resources of the open watches, one entry for each."""
        return [stream.resource for stream in self._streams]

    def streams(self) -> int:
        """Return the number of requests that kubelets are answering."""
        return self._kubelets.count()

    def stop(self) -> None:
        """End all watches and all streams from kubelets in good order."""
        self._kubelets.stop()
        for stream in tuple(self._streams):
            stream.stop()

    async def serve(self, call: ApiCall, place: ResourcePath) -> HttpReply | web.StreamResponse:
        """Authorize and answer a request. Raises StatusError, NoSuchPath."""
        verb = VERBS.get((call.request.method, bool(place.name)))
        resource = place.resource
        if resource is None or verb is None:
            call.authorize(self._guard, paths.path_attributes(call.request.method, call.head.path))
            raise status.no_such_resource() if resource is None else status.method_not_allowed()
        call.resource = resource
        watching = verb == "list" and (place.watch or flag(call.query, "watch"))
        selector = first(call.query, "fieldSelector")
        call.authorize(self._guard, paths.resource_attributes("watch" if watching else verb, resource, place, selector))
        if resource.deprecation:
            call.warnings.append(resource.deprecation)
        if place.subresource in resource.proxied:
            return await self._kubelets.serve(call, place)
        _check_place(place, verb)
        self._nodes.check_path(call.user, verb, place)
        call.form = negotiate_form(call.head.accept)
        if call.form.convert == "Table":
            render.check_include(first(call.query, "includeObject"))
        if watching:
            return await self._watch(call, place)
        check_timeout(call.query)
        return await self._handlers[verb](call, place)

    async def _get(self, call: ApiCall, place: ResourcePath) -> HttpReply:
        resource = _known(place)
        requested = revision(first(call.query, "resourceVersion"))
        record = await self._core.reads.get(resource, place.namespace, place.name, requested)
        if place.subresource == SCALE and resource.scale is not None:
            body = msgspec.json.encode(scale.scale_of(resource.scale, decode_stored(resource, record)))
            return self._one(call, scale.SCALES, WriteResult(body))
        return self._one(call, resource, WriteResult(served_body(resource, record.body)))

    async def _list(self, call: ApiCall, place: ResourcePath) -> HttpReply:
        resource = _known(place)
        options = ListOptions.read(call.query, watch=False)
        found = await self._core.reads.list(resource, place.namespace, options)
        return self._page(call, resource, found)

    async def _watch(self, call: ApiCall, place: ResourcePath) -> web.StreamResponse:
        resource = _known(place)
        options = ListOptions.read(call.query, watch=True)
        watch = await self._core.reads.watch(resource, place.namespace, options)
        stream = WatchStream(
            resource,
            watch,
            self._lines,
            form=call.form,
            include=first(call.query, "includeObject"),
            bookmarks=options.bookmarks,
            timeout_s=options.timeout_s,
        )
        self._streams.add(stream)
        try:
            return await stream.serve(call.request, call.warnings)
        finally:
            self._streams.discard(stream)

    async def _create(self, call: ApiCall, place: ResourcePath) -> HttpReply:
        resource = _known(place)
        options = self._write_options(call, place, "CreateOptions")
        resource = resource.transient.get(place.subresource, resource)
        document = await read_object(call, resource)
        call.new_name = document.name
        if resource is EVICTIONS:
            accept_earlier_version(document.value)
            eviction = decoding.decode_object(resource, document, options)
            return await self._evict(call, place, eviction, dry_run=options.dry_run)
        answer = self._answers.get(resource.name)
        if answer is not None:
            return self._answer(
                call, place, answer, self._core.writes.review(resource, place.subresource, document, options)
            )
        outcome = await self._core.writes.create(resource, place.namespace, document, options)
        return self._one(call, resource, outcome)

    def _answer(self, call: ApiCall, place: ResourcePath, answer: Answer, review: Object) -> HttpReply:
        """Answer a review, which is not stored; the review gets its status."""
        resource = _known(place)
        self._nodes.check_token(call.user, place, review)
        self._policy_checks.check_write(call, resource, review, None, resource.transient.get(place.subresource))
        answer(call.user, place, review)
        return self._one(call, resource, WriteResult(metadata.encode(review, 0), created=True))

    async def _evict(self, call: ApiCall, place: ResourcePath, eviction: Object, *, dry_run: bool) -> HttpReply:
        self._policy_checks.check_write(call, _known(place), eviction, None, EVICTIONS)
        done = await self._evictions.evict(place.namespace, place.name, eviction, dry_run=dry_run)
        return call.answer(msgspec.json.encode(done), 201, "application/json")

    def _write_options(
        self, call: ApiCall, place: ResourcePath, kind: str, *, applies: bool | None = None
    ) -> WriteOptions:
        resource = _known(place)
        options = WriteOptions.read(call.query, kind, call.warnings, agent=call.head.agent, applies=applies)
        if resource is REQUESTS or node_of(call.user) is not None:
            options = replace(options, prepare=partial(self._prepare, call, place))
        creates = resource.type.create_on_update or kind == "PatchOptions"
        if creates or resource.group in _GUARDED or self._policy_checks.applies_to(resource):
            options = replace(options, admit=partial(self._admit, call, place))
        return options

    def _prepare(self, call: ApiCall, place: ResourcePath, obj: Object, old: Object | None) -> None:
        """Apply the steps that depend on the user and precede the rules of the type. Raises StatusError (403)."""
        resource = _known(place)
        set_requesting_user(call.user, resource, obj, old)
        self._nodes.check_content(call.user, resource, place.subresource, obj, old)

    def _admit(self, call: ApiCall, place: ResourcePath, obj: Object, old: Object | None) -> None:
        """Apply the checks that need the object that is about to be stored. Raises StatusError (403)."""
        resource = _known(place)
        # the right to change an object does not include the right to create it
        if old is None and call.request.method != "POST":
            namespace, name = obj["metadata"].get("namespace", ""), obj["metadata"]["name"]
            self._guard.authorize(
                call.user, AuthAttributes("create", resource.group, resource.plural, "", namespace, name)
            )
        if resource.group == ROLES_GROUP:
            self._escalation.check(call.user, resource, obj, old)
        self._signers.check(call.user, resource, place.subresource, obj, old)
        self._param_rights.check(call.user, resource, obj, old)
        kind = None
        if place.subresource == SCALE and resource.scale is not None and old is not None:
            obj, old = (scale.scale_to_change(resource.scale, one) for one in (obj, old))
            kind = scale.SCALES
        self._policy_checks.check_write(call, resource, obj, old, kind)

    async def _update(self, call: ApiCall, place: ResourcePath) -> HttpReply:
        resource = _known(place)
        options = self._write_options(call, place, "UpdateOptions")
        target = WriteTarget(resource, place.namespace, place.name, place.subresource)
        writes = self._core.writes
        if place.subresource == SCALE:
            document = await read_object(call, scale.SCALES)
            return self._one(call, scale.SCALES, await writes.update_scale(target, document, options))
        return self._one(call, resource, await writes.update(target, await read_object(call, resource), options))

    async def _patch(self, call: ApiCall, place: ResourcePath) -> HttpReply:
        resource = _known(place)
        kind = call.head.media
        options = self._write_options(call, place, "PatchOptions", applies=kind == patches.APPLY)
        supported = [patches.JSON, patches.MERGE]
        if place.subresource != SCALE:
            supported.append(patches.APPLY)
        if resource.type.shape is not None:
            supported.insert(2, patches.STRATEGIC)
        if kind not in supported:
            raise status.unsupported_media(supported)
        target = WriteTarget(resource, place.namespace, place.name, place.subresource)
        writes = self._core.writes
        if place.subresource == SCALE:
            outcome = await writes.patch_scale(target, kind, await read_body(call), options)
            return self._one(call, scale.SCALES, outcome)
        if kind == patches.APPLY:
            outcome = await writes.apply(target, await read_configuration(call), options)
        else:
            outcome = await writes.patch(target, kind, await read_body(call), options)
        return self._one(call, resource, outcome)

    async def _delete(self, call: ApiCall, place: ResourcePath) -> HttpReply:
        resource = _known(place)
        options = self._guarded(call, resource, await read_delete_options(call))
        target = WriteTarget(resource, place.namespace, place.name)
        deleted = await self._core.deletes.delete(target, options)
        if deleted.body is not None:
            return self._one(call, resource, WriteResult(deleted.body))
        done = status.success(resource.group, resource.plural, place.name, deleted.uid)
        return call.answer(msgspec.json.encode(done), media="application/json")

    async def _delete_collection(self, call: ApiCall, place: ResourcePath) -> HttpReply:
        resource = _known(place)
        selection = ListOptions.read(call.query, watch=False)
        options = self._guarded(call, resource, await read_delete_options(call))
        found = await self._core.deletes.delete_collection(resource, place.namespace, selection, options)
        return self._page(call, resource, found)

    def _guarded(self, call: ApiCall, resource: Resource, options: DeleteOptions) -> DeleteOptions:
        if not self._policy_checks.applies_to(resource):
            return options
        return dataclasses.replace(options, admit=partial(self._policy_checks.check_delete, call, resource, options))

    def _one(self, call: ApiCall, resource: Resource, outcome: WriteResult) -> HttpReply:
        body = render.one(resource, outcome.body, call.form, first(call.query, "includeObject"))
        return call.answer(body, 201 if outcome.created else 200)

    def _page(self, call: ApiCall, resource: Resource, found: ObjectPage) -> HttpReply:
        parts = render.page(resource, found, call.form, first(call.query, "includeObject"))
        reply = call.answer(next(parts))
        if (second := next(parts, None)) is not None:
            reply.more_body = chain((second,), parts)
        return reply


def _known(place: ResourcePath) -> Resource:
    if place.resource is None:
        raise status.no_such_resource()
    return place.resource


def _check_place(place: ResourcePath, verb: str) -> None:
    """Reject verbs that a collection, an object or a subresource lacks. Raises StatusError or NoSuchPath."""
    resource = _known(place)
    if not place.name:
        if verb in {"update", "patch"}:
            raise status.bad_request("name must be provided") if resource.custom else status.method_not_allowed()
        if verb not in resource.verbs:
            raise status.method_not_allowed()
        if resource.namespaced and not place.namespace and verb in {"create", "deletecollection"}:
            raise NoSuchPath if resource.custom else status.method_not_allowed()
        return
    for why in name_validation.path_segment(place.name):
        raise status.bad_request(f'Name parameter invalid: "{place.name}": {why}')
    if place.subresource and place.subresource not in {*resource.transient, *resource.changed_by}:
        if resource.custom:
            raise status.not_found(resource.group, resource.plural, place.name)
        raise status.no_such_resource()
    if place.subresource in resource.transient:
        if verb != "create":
            raise status.method_not_allowed()
        return
    if not resource.custom and resource.verbs == ("create",):  # created and not stored
        raise status.method_not_allowed()
    if verb == "create" or (verb == "delete" and place.subresource):
        custom = status.not_supported(resource.group, resource.plural, verb)
        raise custom if resource.custom else status.method_not_allowed()
    if place.subresource and verb not in resource.changed_by[place.subresource]:
        raise status.method_not_allowed()
