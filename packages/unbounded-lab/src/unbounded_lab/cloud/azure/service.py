"""The calls of Azure Resource Manager, by method and path: a request and the time in, a reply out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import urlencode

from unbounded_lab.cloud.azure import lifecycle, model, views
from unbounded_lab.cloud.azure.changes import create, reimage, update
from unbounded_lab.cloud.azure.errors import AzureProblem, LoginProblem, json_reply
from unbounded_lab.cloud.azure.resource_manager import Act, Azure, AzureCall, ResourceManagerRequest
from unbounded_lab.cloud.azure.resources import not_found
from unbounded_lab.http import LabReply, LabRequest, Routes

IN_SUBSCRIPTION: Final = "/subscriptions/*"
IN_GROUP: Final = f"{IN_SUBSCRIPTION}/resourceGroups/*"
MACHINE: Final = f"{IN_GROUP}/providers/{model.MACHINES}/*"
SCALE_SET: Final = f"{IN_GROUP}/providers/{model.SCALE_SETS}/*"
LOCATION: Final = f"{IN_SUBSCRIPTION}/providers/Microsoft.Compute/locations/*"
IMAGE: Final = f"{LOCATION}/publishers/*/artifacttypes/vmimage/offers/*/skus/*/versions/*"
VERSION: Final = f"{IN_GROUP}/providers/{model.COMPUTE}/galleries/*/images/*/versions/*"


# Virtual machines


def _get_machine(azure: Azure, call: ResourceManagerRequest) -> LabReply:
    machine = azure.read_machine(call.resource(model.MACHINES), call.now)
    extensions = azure.read_extensions(machine, call.now - azure.faults.get_lag_s)
    document = views.machine_document(azure.estate, machine, extensions, expand=call.expand)
    return json_reply(document, headers={"etag": views.etag(machine)})


def _get_instance_view(azure: Azure, call: ResourceManagerRequest) -> LabReply:
    machine = azure.read_machine(call.resource(model.MACHINES), call.now)
    return json_reply(views.instance_view(machine, azure.read_extensions(machine, call.now - azure.faults.get_lag_s)))


def _list_machines(azure: Azure, call: ResourceManagerRequest) -> LabReply:
    group = call.names[1] if len(call.names) > 1 else None
    as_of = call.now - azure.faults.list_lag_s
    visible = [each for _, each in azure.estate.machines.values_at(as_of) if each.id.is_in(call.subscription, group)]
    documents = [
        views.machine_document(azure.estate, each, azure.read_extensions(each, as_of), expand=call.expand)
        for each in visible
    ]
    return _page(azure, call, documents)


def _page(azure: Azure, call: ResourceManagerRequest, documents: list[dict[str, Any]]) -> LabReply:
    """Return a part of a list, with a link to the next one where there is more."""
    token, size = call.query.get("$skiptoken", "0"), azure.faults.page_size
    if not token.isdecimal():
        raise AzureProblem("BadRequest", detail=f"The skip token '{token}' is not valid.")
    first = int(token)
    body: dict[str, Any] = {"value": documents[first : first + size]}
    if first + size < len(documents):
        query = {**call.query, "$skiptoken": str(first + size)}
        here = f"https://{call.request.headers.get('host', '')}{call.request.path}"
        body["nextLink"] = f"{here}?{urlencode(query, safe='$')}"
    return json_reply(body)


def _put_machine(azure: Azure, call: ResourceManagerRequest) -> LabReply:
    resource = call.resource(model.MACHINES)
    body = call.body()
    existing = azure.estate.machines.get(resource.key)
    _check_conditions(call.request, existing)
    if existing is None:
        operation = create(azure.estate, resource, body, call.now)
    else:
        lifecycle.claim(azure.estate, existing, "Create or Update VM", call.now)
        if not body.get("location"):
            raise AzureProblem("LocationRequired")
        machine = azure.estate.machine(resource)
        operation = update(azure.estate, machine, body, call.now, "VirtualMachines.CreateOrUpdate")
    return _changed(azure, call, operation, 201 if existing is None else 200)


def _patch_machine(azure: Azure, call: ResourceManagerRequest) -> LabReply:
    resource = call.resource(model.MACHINES)
    machine = azure.estate.machine(resource)
    _check_conditions(call.request, machine)
    body = call.body()
    lifecycle.claim(azure.estate, machine, "Update VM", call.now)
    machine = azure.estate.machine(resource)
    operation = update(azure.estate, machine, body, call.now, "VirtualMachines.Update")
    return _changed(azure, call, operation, 200)


def _changed(
    azure: Azure, call: ResourceManagerRequest, operation: model.LongRunningOperation, status: int
) -> LabReply:
    machine = azure.estate.machine(operation.subject)
    document = views.machine_document(azure.estate, machine, azure.read_extensions(machine, call.now))
    return azure.accepted(call, operation, status, document)


def _check_conditions(request: LabRequest, machine: model.VirtualMachine | None) -> None:
    """Check If-Match and If-None-Match of a change."""
    requested = request.headers.get("if-match")
    if requested is not None and (machine is None or requested not in ("*", views.etag(machine))):
        raise AzureProblem("PreconditionFailed", detail=f"If-Match: {requested}")
    if machine is not None and request.headers.get("if-none-match") == "*":
        raise AzureProblem("PreconditionFailed", detail="If-None-Match: *")


def _delete_machine(azure: Azure, call: ResourceManagerRequest) -> LabReply:
    machine = azure.estate.machines.get(call.resource(model.MACHINES).key)
    if machine is None:
        return LabReply(204)
    force = call.query.get("forceDeletion", "").lower() == "true"
    operation = lifecycle.delete_machine(azure.estate, machine, call.now, force=force)
    return azure.accepted(call, operation, 202)


def _power(action: str) -> Act:
    def act(azure: Azure, call: ResourceManagerRequest) -> LabReply:
        machine = azure.estate.machine(call.resource(model.MACHINES))
        skip = call.query.get("skipShutdown", "").lower() == "true"
        return azure.accepted(call, lifecycle.act(azure.estate, machine, action, call.now, skip_shutdown=skip), 202)

    return act


def _reimage(azure: Azure, call: ResourceManagerRequest) -> LabReply:
    machine = azure.estate.machine(call.resource(model.MACHINES))
    body = call.body() if call.request.body else {}
    return azure.accepted(call, reimage(azure.estate, machine, body, call.now), 202)


# Scale sets: there are none


def _no_scale_set(_: Azure, call: ResourceManagerRequest) -> LabReply:
    raise not_found(call.resource(model.SCALE_SETS))


def _no_parent(_: Azure, call: ResourceManagerRequest) -> LabReply:
    raise AzureProblem("ParentResourceNotFound", name=call.names[2])


# Extensions


def _list_extensions(azure: Azure, call: ResourceManagerRequest) -> LabReply:
    machine = azure.read_machine(call.resource(model.MACHINES), call.now)
    visible = azure.read_extensions(machine, call.now - azure.faults.list_lag_s)
    return json_reply({"value": [views.extension_document(each) for each in visible]})


def _get_extension(azure: Azure, call: ResourceManagerRequest) -> LabReply:
    machine = azure.read_machine(call.resource(model.MACHINES), call.now)
    for each in azure.read_extensions(machine, call.now - azure.faults.get_lag_s):
        if each.name.lower() == call.names[3].lower():
            return json_reply(views.extension_document(each))
    raise lifecycle.extension_not_found(machine, call.names[3])


def _put_extension(azure: Azure, call: ResourceManagerRequest) -> LabReply:
    machine = azure.estate.machine(call.resource(model.MACHINES))
    existed = any(each.name.lower() == call.names[3].lower() for each in azure.estate.extensions_of(machine.id))
    operation = lifecycle.put_extension(azure.estate, machine, call.names[3], call.body(), call.now)
    made = azure.estate.extensions.get(f"{machine.id.key}/extensions/{call.names[3].lower()}")
    if made is None:
        raise lifecycle.extension_not_found(machine, call.names[3])
    return azure.accepted(call, operation, 200 if existed else 201, views.extension_document(made))


def _delete_extension(azure: Azure, call: ResourceManagerRequest) -> LabReply:
    machine = azure.estate.machine(call.resource(model.MACHINES))
    for each in azure.estate.extensions_of(machine.id):
        if each.name.lower() == call.names[3].lower():
            return azure.accepted(call, lifecycle.delete_extension(azure.estate, each, call.now), 202)
    return LabReply(204)


# Disks, network interfaces, availability sets, groups


def _disk_document(azure: Azure, disk: model.Disk, as_of: float) -> dict[str, Any]:
    owner = None if disk.owner is None else azure.estate.machines.value_at(disk.owner.key, as_of)
    return views.disk_document(disk, owner)


def _get_disk(azure: Azure, call: ResourceManagerRequest) -> LabReply:
    resource, as_of = call.resource(model.DISKS), call.now - azure.faults.get_lag_s
    disk = azure.estate.disks.value_at(resource.key, as_of)
    if disk is None:
        raise not_found(resource)
    return json_reply(_disk_document(azure, disk, as_of))


def _list_disks(azure: Azure, call: ResourceManagerRequest) -> LabReply:
    group = call.names[1] if len(call.names) > 1 else None
    as_of = call.now - azure.faults.list_lag_s
    visible = [each for _, each in azure.estate.disks.values_at(as_of) if each.id.is_in(call.subscription, group)]
    return _page(azure, call, [_disk_document(azure, each, as_of) for each in visible])


def _delete_disk(azure: Azure, call: ResourceManagerRequest) -> LabReply:
    disk = azure.estate.disks.get(call.resource(model.DISKS).key)
    if disk is None:
        return LabReply(204)
    return azure.accepted(call, lifecycle.delete_disk(azure.estate, disk, call.now), 202)


def _get_nic(azure: Azure, call: ResourceManagerRequest) -> LabReply:
    resource = call.resource(model.NICS)
    nic = azure.estate.nics.value_at(resource.key, call.now - azure.faults.get_lag_s)
    if nic is None:
        raise not_found(resource)
    return json_reply(views.nic_document(nic))


def _list_nics(azure: Azure, call: ResourceManagerRequest) -> LabReply:
    as_of = call.now - azure.faults.list_lag_s
    visible = azure.estate.nics.values_at(as_of)
    documents = [views.nic_document(each) for _, each in visible if each.id.is_in(call.subscription, call.names[1])]
    return _page(azure, call, documents)


def _delete_nic(azure: Azure, call: ResourceManagerRequest) -> LabReply:
    nic = azure.estate.nics.get(call.resource(model.NICS).key)
    if nic is None:
        return LabReply(204)
    lifecycle.delete_nic(azure.estate, nic, call.now)
    return LabReply(200)


def _get_availability_set(azure: Azure, call: ResourceManagerRequest) -> LabReply:
    resource = call.resource(model.AVAILABILITY_SETS)
    known = azure.estate.availability_sets.get(resource.key)
    if known is None:
        raise not_found(resource)
    members = [
        machine.id
        for _, machine in azure.estate.machines
        if str((machine.properties.get("availabilitySet") or {}).get("id")).lower() == known.key
    ]
    location = azure.estate.groups[known.subscription.lower(), known.group.lower()]
    return json_reply(views.availability_set_document(known, location, members))


def _get_image(azure: Azure, call: ResourceManagerRequest) -> LabReply:
    return json_reply(views.of_marketplace(azure.estate, *call.names))


def _list_images(azure: Azure, call: ResourceManagerRequest) -> LabReply:
    return json_reply(views.versions_of_marketplace(azure.estate, *call.names))


def _get_own_image(azure: Azure, call: ResourceManagerRequest) -> LabReply:
    location = azure.estate.groups[call.names[0].lower(), call.names[1].lower()]
    return json_reply(views.managed(azure.estate, str(call.resource(f"{model.COMPUTE}/images")), location))


def _get_version(azure: Azure, call: ResourceManagerRequest) -> LabReply:
    location = azure.estate.groups[call.names[0].lower(), call.names[1].lower()]
    return json_reply(views.version_of_gallery(azure.estate, call.request.path, location))


def _list_versions(azure: Azure, call: ResourceManagerRequest) -> LabReply:
    location = azure.estate.groups[call.names[0].lower(), call.names[1].lower()]
    image = call.request.path.rpartition("/")[0]
    return _page(azure, call, views.versions_of_gallery(azure.estate, image, location))


def _in_gallery_of_others(call: ResourceManagerRequest) -> str:
    """Return the path of a gallery's resource, without the location before it."""
    location = f"/locations/{call.names[1]}"
    path = call.request.path
    return path[path.lower().index(location.lower()) + len(location) :]


def _get_version_of_others(azure: Azure, call: ResourceManagerRequest) -> LabReply:
    return json_reply(views.version_of_gallery(azure.estate, _in_gallery_of_others(call), call.names[1]))


def _list_versions_of_others(azure: Azure, call: ResourceManagerRequest) -> LabReply:
    image = _in_gallery_of_others(call).rpartition("/")[0]
    return _page(azure, call, views.versions_of_gallery(azure.estate, image, call.names[1]))


def _get_group(azure: Azure, call: ResourceManagerRequest) -> LabReply:
    subscription, group = call.names
    return json_reply(
        {
            "id": f"/subscriptions/{subscription}/resourceGroups/{group}",
            "name": group,
            "type": "Microsoft.Resources/resourceGroups",
            "location": azure.estate.groups[subscription.lower(), group.lower()],
            "properties": {"provisioningState": "Succeeded"},
        }
    )


# Operations and login


def _get_operation(azure: Azure, call: ResourceManagerRequest) -> LabReply:
    operation = azure.estate.operations.get(call.names[2])
    is_here = operation is not None and operation.subject.subscription.lower() == call.subscription.lower()
    if operation is None or not is_here or azure.faults.operations_forgotten:
        raise AzureProblem("NotFound", detail=f"The entity '{call.names[2]}' was not found.")
    if "monitor" not in call.query:
        headers = azure.hint() if operation.status is model.OperationStatus.IN_PROGRESS else {}
        return json_reply(views.operation_document(operation), headers=headers)
    if operation.status is model.OperationStatus.IN_PROGRESS:
        here = f"https://{call.request.headers.get('host', '')}{call.request.path}?{call.request.query}"
        return LabReply(202, b"", {"location": here, **azure.hint()})
    return LabReply(200) if operation.error is None else operation.error.reply()


def _login(azure: Azure, call: ResourceManagerRequest) -> LabReply:
    lifetime_s = azure.faults.token_lifetime_s
    return json_reply(azure.login.token(call.names[0], call.request, call.now, lifetime_s=lifetime_s))


def _discover(azure: Azure, call: ResourceManagerRequest) -> LabReply:
    if call.names[0].lower() != azure.login.tenant:
        raise LoginProblem("unknown_tenant", call.names[0])
    return json_reply(azure.login.discovery(f"https://{call.request.headers.get('host', '')}"))


TABLE: Final[Mapping[tuple[str, str], AzureCall]] = {
    ("GET", MACHINE): AzureCall("VirtualMachines.Get", _get_machine, "LowCostGetVM"),
    ("PUT", MACHINE): AzureCall("VirtualMachines.CreateOrUpdate", _put_machine, "PutVM"),
    ("PATCH", MACHINE): AzureCall("VirtualMachines.Update", _patch_machine, "UpdateVM"),
    ("DELETE", MACHINE): AzureCall("VirtualMachines.Delete", _delete_machine, "DeleteVM"),
    ("GET", f"{MACHINE}/instanceView"): AzureCall("VirtualMachines.InstanceView", _get_instance_view, "LowCostGetVM"),
    ("POST", f"{MACHINE}/start"): AzureCall("VirtualMachines.Start", _power("Start"), "UpdateVM"),
    ("POST", f"{MACHINE}/restart"): AzureCall("VirtualMachines.Restart", _power("Restart"), "UpdateVM"),
    ("POST", f"{MACHINE}/powerOff"): AzureCall("VirtualMachines.PowerOff", _power("PowerOff"), "UpdateVM"),
    ("POST", f"{MACHINE}/deallocate"): AzureCall("VirtualMachines.Deallocate", _power("Deallocate"), "DeleteVM"),
    ("POST", f"{MACHINE}/reimage"): AzureCall("VirtualMachines.Reimage", _reimage, "UpdateVM"),
    ("GET", SCALE_SET): AzureCall("VirtualMachineScaleSets.Get", _no_scale_set),
    ("GET", f"{SCALE_SET}/virtualMachines"): AzureCall("VirtualMachineScaleSetVMs.List", _no_parent),
    ("GET", f"{SCALE_SET}/virtualMachines/*"): AzureCall("VirtualMachineScaleSetVMs.Get", _no_parent),
    ("GET", f"{SCALE_SET}/virtualMachines/*/instanceView"): AzureCall(
        "VirtualMachineScaleSetVMs.InstanceView", _no_parent
    ),
    **{
        ("POST", f"{SCALE_SET}/virtualMachines/*/{verb}"): AzureCall(
            f"VirtualMachineScaleSetVMs.{verb[0].upper()}{verb[1:]}", _no_parent
        )
        for verb in ("start", "restart", "powerOff", "deallocate", "reimage")
    },
    ("GET", f"{IN_GROUP}/providers/{model.MACHINES}"): AzureCall(
        "VirtualMachines.List", _list_machines, "HighCostGetVM"
    ),
    ("GET", f"{IN_SUBSCRIPTION}/providers/{model.MACHINES}"): AzureCall(
        "VirtualMachines.ListAll", _list_machines, "HighCostGetVM"
    ),
    ("GET", f"{MACHINE}/extensions"): AzureCall("VirtualMachineExtensions.List", _list_extensions, "LowCostGetVM"),
    ("GET", f"{MACHINE}/extensions/*"): AzureCall("VirtualMachineExtensions.Get", _get_extension, "LowCostGetVM"),
    ("PUT", f"{MACHINE}/extensions/*"): AzureCall(
        "VirtualMachineExtensions.CreateOrUpdate", _put_extension, "UpdateVM"
    ),
    ("DELETE", f"{MACHINE}/extensions/*"): AzureCall("VirtualMachineExtensions.Delete", _delete_extension, "UpdateVM"),
    ("GET", f"{IN_GROUP}/providers/{model.DISKS}/*"): AzureCall("Disks.Get", _get_disk),
    ("DELETE", f"{IN_GROUP}/providers/{model.DISKS}/*"): AzureCall("Disks.Delete", _delete_disk),
    ("GET", f"{IN_GROUP}/providers/{model.DISKS}"): AzureCall("Disks.ListByResourceGroup", _list_disks),
    ("GET", f"{IN_SUBSCRIPTION}/providers/{model.DISKS}"): AzureCall("Disks.List", _list_disks),
    ("GET", f"{IN_GROUP}/providers/{model.NICS}/*"): AzureCall("NetworkInterfaces.Get", _get_nic),
    ("DELETE", f"{IN_GROUP}/providers/{model.NICS}/*"): AzureCall("NetworkInterfaces.Delete", _delete_nic),
    ("GET", f"{IN_GROUP}/providers/{model.NICS}"): AzureCall("NetworkInterfaces.List", _list_nics),
    ("GET", f"{IN_GROUP}/providers/{model.AVAILABILITY_SETS}/*"): AzureCall(
        "AvailabilitySets.Get", _get_availability_set
    ),
    ("GET", IMAGE): AzureCall("VirtualMachineImages.Get", _get_image),
    ("GET", IMAGE.removesuffix("/*")): AzureCall("VirtualMachineImages.List", _list_images),
    ("GET", f"{IN_GROUP}/providers/{model.COMPUTE}/images/*"): AzureCall("Images.Get", _get_own_image),
    ("GET", VERSION): AzureCall("GalleryImageVersions.Get", _get_version),
    ("GET", VERSION.removesuffix("/*")): AzureCall("GalleryImageVersions.ListByGalleryImage", _list_versions),
    **{
        ("GET", f"{LOCATION}/{kind}Galleries/*/images/*/versions{path}"): AzureCall(
            f"{kind.title()}GalleryImageVersions.{verb}", act
        )
        for kind in ("shared", "community")
        for path, verb, act in (("/*", "Get", _get_version_of_others), ("", "List", _list_versions_of_others))
    },
    ("GET", IN_GROUP): AzureCall("ResourceGroups.Get", _get_group),
    ("GET", f"{LOCATION}/operations/*"): AzureCall("Operations.Get", _get_operation, "GetOperation"),
    ("POST", "/*/oauth2/v2.0/token"): AzureCall("Login.Token", _login),
    ("GET", "/*/v2.0/.well-known/openid-configuration"): AzureCall("Login.Discovery", _discover),
}

ROUTES: Final[Mapping[str, Routes[AzureCall]]] = {
    method: Routes({path: row for (each, path), row in TABLE.items() if each == method}, ignore_case=True)
    for method in ("GET", "PUT", "PATCH", "POST", "DELETE")
}
