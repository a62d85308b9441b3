"""The calls of the service, with Oracle's names."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from unbounded_lab.cloud.oci import reads, writes
from unbounded_lab.routes import Routes

VERSION: Final = "/20160918"
FEDERATION: Final = "/v1/x509"
WORKLOAD: Final = "/resourcePrincipalSessionTokens"
IN_AD: Final = ("availabilityDomain",)


@dataclass(frozen=True, slots=True)
class OciCall:
    """A call: its name, and the function that executes it."""

    name: str
    read: reads.Read | None = None
    write: writes.Write | None = None


NAMED: Final = ("displayName", "lifecycleState")
INSTANCES: Final = reads.many(
    lambda t: t.instances, filters=(*IN_AD, *NAMED, "capacityReservationId", "computeClusterId")
)

CALLS: Final[Mapping[str, Mapping[str, OciCall]]] = {
    "GET": {
        "/instances": OciCall("ListInstances", INSTANCES),
        "/instances/*": OciCall("GetInstance", reads.one(lambda t: t.instances)),
        "/vnicAttachments": OciCall(
            "ListVnicAttachments",
            reads.many(lambda t: t.vnic_attachments, filters=(*IN_AD, "instanceId", "vnicId")),
        ),
        "/vnics/*": OciCall("GetVnic", reads.one(lambda t: t.vnics)),
        "/subnets/*": OciCall("GetSubnet", reads.one(lambda t: t.subnets)),
        "/subnets": OciCall("ListSubnets", reads.many(lambda t: t.subnets, filters=(*NAMED, "vcnId"))),
        "/bootVolumeAttachments": OciCall(
            "ListBootVolumeAttachments",
            reads.many(
                lambda t: t.boot_volume_attachments,
                filters=(*IN_AD, "instanceId", "bootVolumeId"),
                needed=("availabilityDomain", "compartmentId"),
            ),
        ),
        "/volumeAttachments": OciCall(
            "ListVolumeAttachments",
            reads.many(lambda t: t.volume_attachments, filters=(*IN_AD, "instanceId", "volumeId")),
        ),
        "/bootVolumes": OciCall(
            "ListBootVolumes", reads.many(lambda t: t.boot_volumes, filters=(*IN_AD, "volumeGroupId"))
        ),
        "/bootVolumes/*": OciCall("GetBootVolume", reads.one(lambda t: t.boot_volumes)),
        "/volumes": OciCall(
            "ListVolumes",
            reads.many(lambda t: t.volumes, filters=(*IN_AD, *NAMED, "volumeGroupId", "clusterPlacementGroupId")),
        ),
        "/volumes/*": OciCall("GetVolume", reads.one(lambda t: t.volumes)),
        "/images": OciCall("ListImages", reads.images),
        "/images/*": OciCall("GetImage", reads.one(lambda t: t.images)),
        "/shapes": OciCall("ListShapes", reads.shapes),
        "/availabilityDomains": OciCall("ListAvailabilityDomains", reads.availability_domains),
        "/workRequests": OciCall("ListWorkRequests", reads.work_requests),
        "/workRequests/*": OciCall("GetWorkRequest", reads.work_request),
        "/workRequests/*/errors": OciCall("ListWorkRequestErrors", reads.work_request_errors),
    },
    "POST": {
        "/instances": OciCall("LaunchInstance", write=writes.launch_instance),
        "/instances/*": OciCall("InstanceAction", write=writes.instance_action),
    },
    "PUT": {"/instances/*": OciCall("UpdateInstance", write=writes.update_instance)},
    "DELETE": {
        "/instances/*": OciCall("TerminateInstance", write=writes.terminate_instance),
        "/bootVolumes/*": OciCall("DeleteBootVolume", write=writes.delete_boot_volume),
    },
}

ROUTES: Final[Mapping[str, Routes[OciCall]]] = {
    method: Routes({f"{VERSION}{path}": known for path, known in calls.items()}) for method, calls in CALLS.items()
}
