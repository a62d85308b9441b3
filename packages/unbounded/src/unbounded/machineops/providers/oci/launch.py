"""Launch request of a replacement, from the old instance, and the properties that it cannot keep.

Pure; bodies are in the API's form.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from unbounded.machineops import reasons
from unbounded.machineops.provider import Job, Loss, Refusal
from unbounded.machineops.providers.oci.instances import SCHEME, provider_id

Body = dict[str, Any]

METADATA_BYTES: Final = 32_000
TAGS: Final = 10
GB: Final = 1024

TAG_MACHINE: Final = "unbounded_machine"
TAG_OPERATION: Final = "unbounded_machine_operation"
TAG_UID: Final = "unbounded_machine_operation_uid"
TAG_OLD: Final = "unbounded_old_provider_id"
TAG_POOL: Final = "oci:compute:instancepool"
"""Tag that the service sets on the instances of a pool."""

COPIED: Final = (
    "compartmentId",
    "availabilityDomain",
    "faultDomain",
    "shape",
    "displayName",
    "extendedMetadata",
    "ipxeScript",
    "instanceOptions",
    "agentConfig",
    "availabilityConfig",
    "capacityReservationId",
    "clusterPlacementGroupId",
    "dedicatedVmHostId",
    "securityAttributes",
    "isAIEnterpriseEnabled",
    "preemptibleInstanceConfig",
)
SHAPE_CONFIG: Final = {
    "ocpus": "ocpus",
    "memoryInGBs": "memoryInGBs",
    "baselineOcpuUtilization": "baselineOcpuUtilization",
    "localDisks": "nvmes",
    "localVolumeSizeInGBs": "localVolumeSizeInGBs",
    "resourceManagement": "resourceManagement",
}
"""Names of these fields in responses, and in requests."""
ENCRYPTED: Final = ("isPvEncryptionInTransitEnabled", "isEncryptionInTransitEnabled")
LOST: Final = {
    "licensingConfigs": "its licences",
    "placementConstraintDetails": "its placement constraint",
    "instanceConfigurationId": "that it is of an instance configuration",
}
LOST_OF_VOLUME: Final = {
    "bootVolumeReplicas": "the replicas",
    "volumeGroupId": "the volume group",
    "clusterPlacementGroupId": "the cluster placement group",
    "securityAttributes": "the security attributes",
}
SECURITY: Final = frozenset({"bootVolume.securityAttributes"})
"""Restrictions of access that cannot be kept."""
NEEDED: Final = ("compartmentId", "availabilityDomain", "shape")
SERVICE_TAGS: Final = "Oracle-Tags"
"""A namespace of defined tags that only the service may set."""
ITS_OWN: Final = (
    *COPIED,
    "shapeConfig",
    "platformConfig",
    "isPvEncryptionInTransitEnabled",
    "metadata",
    "freeformTags",
    "definedTags",
)
"""Fields of LaunchInstanceDetails that come from the old instance itself."""
OPTIONS: Final = (
    "bootVolumeType",
    "firmware",
    "networkType",
    "remoteDataVolumeType",
    "isConsistentVolumeNamingEnabled",
)
"""Fields of its launchOptions: the replacement has those of its image, as an image boots only with some options."""


def check(old: Body, volumes: Sequence[str], subnet: Body, job: Job) -> None:
    """Check that the old instance can be replaced at all.

    Args:
        volumes: attached data volumes.
    Raises:
        Refusal: it cannot; the message names the remedy.
    """
    message = f"instance {job.instance.id}"
    if missing := [name for name in NEEDED if not old.get(name)]:
        raise _refused(f"{message} has no {', '.join(missing)}, which the launch of another one needs")
    if volumes:
        words = (
            f"{message} has data volumes, which a replacement would not have; detach them first: {', '.join(volumes)}"
        )
        raise Refusal(reasons.WOULD_BE_LOST, words)
    if pool := _tag(old, TAG_POOL):
        raise _refused(
            f"{message} belongs to instance pool {pool}, which would launch another one in its place: detach it "
            f"from the pool, and remove its freeform tag {TAG_POOL} if that remains"
        )
    forbids = subnet.get("prohibitPublicIpOnVnic") or subnet.get("prohibitInternetIngress")
    if forbids and wants_public_ip(job):
        raise _refused(
            f'subnet {subnet.get("id")} forbids public IPs: give the operation the parameter assignPublicIP: "false", '
            "if new hosts reach the cluster without one"
        )
    if len(_tags(old, job)) > TAGS:
        raise _refused(
            f"{message} has too many freeform tags: a replacement needs room for its own among the {TAGS} allowed"
        )


def wants_public_ip(job: Job) -> bool:
    return job.parameters.get("assignPublicIP") != "false"


def losses(old: Body, vnics: list[Body], image: Body, boot_volume: Body) -> list[Loss]:
    """Return the properties of the old instance that its replacement loses, besides the content of the boot volume."""
    primary = next((each for each in vnics if each.get("isPrimary")), {})
    addresses, others = (
        primary.get("ipv6Addresses") or [],
        [str(each["id"]) for each in vnics if not each.get("isPrimary")],
    )
    drives = (old.get("shapeConfig") or {}).get("localDisks")
    parts = {
        "vnic.privateIp": f"private IP {primary.get('privateIp')}",
        "vnic.publicIp": primary.get("publicIp") and f"public IP {primary['publicIp']}",
        "vnic.ipv6Addresses": addresses and ", ".join(f"IPv6 address {each}" for each in addresses),
        "vnic.hostnameLabel": primary.get("hostnameLabel") and f"host name {primary['hostnameLabel']}",
        "vnic.routeTableId": primary.get("routeTableId") and "the route table of its VNIC",
        "secondaryVnics": others and ", ".join(f"VNIC {each}" for each in others),
        "shapeConfig.localDisks": drives and f"the content of its {drives} local drives",
        **_of_boot_volume(boot_volume),
        **_of_options(old.get("launchOptions") or {}, image.get("launchOptions") or {}),
        **{name: words for name, words in LOST.items() if old.get(name)},
    }
    return [Loss(name, str(words), name in SECURITY) for name, words in parts.items() if words]


def _of_options(options: Body, others: Body) -> dict[str, str]:
    different = (name for name in OPTIONS if options.get(name) not in (None, others.get(name, False)))
    return {f"launchOptions.{name}": f"{name} {options[name]}" for name in different}


def _of_boot_volume(volume: Body) -> dict[str, str]:
    lost = {
        f"bootVolume.{name}": f"{words} of its boot volume"
        for name, words in LOST_OF_VOLUME.items()
        if volume.get(name)
    }
    if volume.get("freeformTags") or _defined_tags(volume):
        lost["bootVolume.tags"] = "the tags of its boot volume"
    if volume.get("isAutoTuneEnabled") or volume.get("autotunePolicies"):
        lost["bootVolume.autotunePolicies"] = "the auto-tuning of its boot volume"
    return lost


def unaccepted_changes(changed: Sequence[str], job: Job) -> list[str]:
    """Return the changes since the start that forbid terminating the old instance."""
    strict, accepted = job.parameters.get("keep") == "strict", job.parameters.get("accept", "")
    names = [one.strip() for one in accepted.split(",")]
    return [each for each in changed if strict and each not in names]


def details(old: Body, vnic: Body, image: Body, boot_volume: Body, *, job: Job, user_data: str) -> Body:
    """Return LaunchInstanceDetails of a replacement.

    Raises:
        Refusal: its metadata would be too large.
    """
    body = _its_own(old, job, user_data)
    body["createVnicDetails"] = {
        "subnetId": vnic["subnetId"],
        **({"displayName": vnic["displayName"]} if vnic.get("displayName") else {}),
        "nsgIds": vnic.get("nsgIds") or [],
        "skipSourceDestCheck": bool(vnic.get("skipSourceDestCheck")),
        "assignPublicIp": wants_public_ip(job),
        "assignIpv6Ip": False,
        "freeformTags": vnic.get("freeformTags") or {},
        "definedTags": _defined_tags(vnic),
        "securityAttributes": vnic.get("securityAttributes") or {},
    }
    body["sourceDetails"] = _source(image, boot_volume)
    if (size := _metadata_bytes(body)) > METADATA_BYTES:
        raise _refused(
            f"the metadata of a replacement of {job.instance.id} would have {size} bytes with user data; the "
            f"limit is {METADATA_BYTES}; nothing was changed"
        )
    return body


def _its_own(old: Body, job: Job, user_data: str) -> Body:
    body: Body = {name: old[name] for name in COPIED if old.get(name) not in (None, {}, [])}
    if ".Flex" in old["shape"]:  # other shapes refuse a shapeConfig
        config = old.get("shapeConfig") or {}
        body["shapeConfig"] = {name: config[shown] for shown, name in SHAPE_CONFIG.items() if config.get(shown)}
    if platform := old.get("platformConfig"):  # secure and measured boot, TPM: the launch takes them as they are shown
        body["platformConfig"] = {name: value for name, value in platform.items() if value is not None}
    if any((old.get("launchOptions") or {}).get(name) for name in ENCRYPTED):
        body["isPvEncryptionInTransitEnabled"] = True
    body["metadata"] = _metadata(old, job, user_data)
    body["freeformTags"] = _tags(old, job)
    body["definedTags"] = _defined_tags(old)
    return body


def changes(old: Body, body: Body, job: Job) -> list[str]:
    """Return the properties of the old instance that have changed since the launch request was stored."""
    now = _its_own(old, job, "")
    now["metadata"]["user_data"] = body["metadata"]["user_data"]
    return [name for name in ITS_OWN if now.get(name) != body.get(name)]


def user_data_room(body: Body) -> int:
    """Return the bytes of user data that fit into details without any."""
    return max(METADATA_BYTES - _metadata_bytes(body), 0) // 4 * 3  # the metadata has it in base64


def _metadata_bytes(body: Body) -> int:
    return len(msgspec.json.encode(body["metadata"])) + len(msgspec.json.encode(body.get("extendedMetadata") or {}))


def _metadata(old: Body, job: Job, user_data: str) -> dict[str, str]:
    metadata = {name: str(value) for name, value in (old.get("metadata") or {}).items() if name != "user_data"}
    keys = [metadata.get("ssh_authorized_keys", ""), job.parameters.get("sshAuthorizedKeys", "")]
    if any(keys):
        metadata["ssh_authorized_keys"] = "\n".join(key.strip() for key in keys if key.strip())
    return metadata | {"user_data": base64.b64encode(user_data.encode()).decode()}


def _defined_tags(body: Body) -> Body:
    return {name: tags for name, tags in (body.get("definedTags") or {}).items() if name != SERVICE_TAGS}


def _tags(old: Body, job: Job) -> dict[str, str]:
    return {
        **(old.get("freeformTags") or {}),
        TAG_MACHINE: job.machine,
        TAG_OPERATION: job.operation,
        TAG_UID: job.uid,
        TAG_OLD: provider_id(old["id"]),
    }


def _source(image: Body, boot_volume: Body) -> Body:
    """Return a boot volume with the size, speed and encryption of the old one, or larger if the image needs that."""
    source: Body = {"sourceType": "image", "imageId": image["id"]}
    size, needed = boot_volume.get("sizeInGBs") or 0, (image.get("sizeInMBs") or 0) / GB
    named = {
        "bootVolumeSizeInGBs": size if size >= needed else None,
        "bootVolumeVpusPerGB": boot_volume.get("vpusPerGB"),
        "kmsKeyId": boot_volume.get("kmsKeyId"),
    }
    return source | {name: value for name, value in named.items() if value}


def predecessor(body: Body) -> str:
    """Return the OCID of the instance that this one replaces; empty for others."""
    return _tag(body, TAG_OLD).removeprefix(SCHEME)


def successors(ident: str, bodies: Sequence[Body]) -> list[Body]:
    """Return the instances that were launched to replace this one or one of its replacements, the oldest first."""
    line: list[Body] = []
    places = [ident]
    for place in places:  # grows by the instances that are found
        following = [each for each in bodies if predecessor(each) == place and each["id"] not in places]
        line += following
        places += [str(each["id"]) for each in following]
    return line


def operation_of(body: Body) -> str:
    """Return the UID of the operation that launched an instance; empty for others."""
    return _tag(body, TAG_UID)


def operation_name(body: Body) -> str:
    return _tag(body, TAG_OPERATION)


def _tag(body: Body, name: str) -> str:
    tags: Mapping[str, str] = body.get("freeformTags") or {}
    return tags.get(name, "")


def _refused(words: str) -> Refusal:
    return Refusal(reasons.PROVIDER_REFUSED, words)
