"""The calls of the service, with Oracle's names."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from unbounded.lab.cloud.oci import reads, writes
from unbounded.lab.routes import Routes

VERSION: Final = "/20160918"
FEDERATION: Final = "/v1/x509"
WORKLOAD: Final = "/resourcePrincipalSessionTokens"
IN_AD: Final = ("availabilityDomain",)


@dataclass(frozen=True, slots=True)
class Known:
    """A call: its name, and the function that executes it."""

    name: str
    read: reads.Read | None = None
    write: writes.Write | None = None


NAMED: Final = ("displayName", "lifecycleState")
INSTANCES: Final = reads.many(
    lambda t: t.instances, filters=(*IN_AD, *NAMED, "capacityReservationId", "computeClusterId")
)

CALLS: Final[Mapping[str, Mapping[str, Known]]] = {
    "GET": {
        "/instances": Known("ListInstances", INSTANCES),
        "/instances/*": Known("GetInstance", reads.one(lambda t: t.instances)),
        "/vnicAttachments": Known(
            "ListVnicAttachments",
            reads.many(lambda t: t.vnic_attachments, filters=(*IN_AD, "instanceId", "vnicId")),
        ),
        "/vnics/*": Known("GetVnic", reads.one(lambda t: t.vnics)),
        "/subnets/*": Known("GetSubnet", reads.one(lambda t: t.subnets)),
        "/subnets": Known("ListSubnets", reads.many(lambda t: t.subnets, filters=(*NAMED, "vcnId"))),
        "/bootVolumeAttachments": Known(
            "ListBootVolumeAttachments",
            reads.many(
                lambda t: t.boot_volume_attachments,
                filters=(*IN_AD, "instanceId", "bootVolumeId"),
                needed=("availabilityDomain", "compartmentId"),
            ),
        ),
        "/volumeAttachments": Known(
            "ListVolumeAttachments",
            reads.many(lambda t: t.volume_attachments, filters=(*IN_AD, "instanceId", "volumeId")),
        ),
        "/bootVolumes": Known(
            "ListBootVolumes", reads.many(lambda t: t.boot_volumes, filters=(*IN_AD, "volumeGroupId"))
        ),
        "/bootVolumes/*": Known("GetBootVolume", reads.one(lambda t: t.boot_volumes)),
        "/volumes": Known(
            "ListVolumes",
            reads.many(lambda t: t.volumes, filters=(*IN_AD, *NAMED, "volumeGroupId", "clusterPlacementGroupId")),
        ),
        "/volumes/*": Known("GetVolume", reads.one(lambda t: t.volumes)),
        "/images": Known("ListImages", reads.images),
        "/images/*": Known("GetImage", reads.one(lambda t: t.images)),
        "/shapes": Known("ListShapes", reads.shapes),
        "/availabilityDomains": Known("ListAvailabilityDomains", reads.availability_domains),
        "/workRequests": Known("ListWorkRequests", reads.work_requests),
        "/workRequests/*": Known("GetWorkRequest", reads.work_request),
        "/workRequests/*/errors": Known("ListWorkRequestErrors", reads.work_request_errors),
    },
    "POST": {
        "/instances": Known("LaunchInstance", write=writes.launch_instance),
        "/instances/*": Known("InstanceAction", write=writes.instance_action),
    },
    "PUT": {"/instances/*": Known("UpdateInstance", write=writes.update_instance)},
    "DELETE": {
        "/instances/*": Known("TerminateInstance", write=writes.terminate_instance),
        "/bootVolumes/*": Known("DeleteBootVolume", write=writes.delete_boot_volume),
    },
}

ROUTES: Final[Mapping[str, Routes[Known]]] = {
    method: Routes({f"{VERSION}{path}": known for path, known in calls.items()}) for method, calls in CALLS.items()
}
