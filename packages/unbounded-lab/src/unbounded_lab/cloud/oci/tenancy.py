"""A tenancy as a state machine: its instances and their resources. No socket; time comes in as a value.

`launching.py` creates instances, `power.py` changes their states; this module has the resources and the history.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from ipaddress import IPv4Network
from typing import Final, TypeVar

from unbounded_lab.cloud.history import Act, CloudEvent, CloudHistory, HistoryMap, Schedule
from unbounded_lab.cloud.oci import model, views
from unbounded_lab.cloud.oci.lifecycle import LIVE, InstanceState
from unbounded_lab.cloud.oci.misbehaviours import COUNTS, IDEAL, OciFaults
from unbounded_lab.faults import Counts


@dataclass(frozen=True, slots=True)
class OciTimes:
    """Durations, in seconds. The real ones are half a minute to several minutes."""

    provision_s: float = 2.0
    boot_s: float = 1.0
    stop_s: float = 1.0
    soft_stop_s: float = 2.0
    soft_limit_s: float = 900.0  # after this time without a reaction of the operating system, the power is cut
    image_s: float = 60.0  # of creating an image of an instance, which is off during that
    move_s: float = 30.0
    terminate_s: float = 1.0
    terminated_shown_s: float = 12 * 3600.0


USUAL_TIMES: Final = OciTimes()

H = TypeVar("H", model.Volume, model.Vnic)

Thing = model.OciInstance | model.Vnic | model.Volume
"""Resources with a history."""

KINDS: Final[Mapping[type[Thing], str]] = {model.OciInstance: "Instance", model.Vnic: "Vnic", model.Volume: "Volume"}
"""The kinds in their events, which clients of the control interface read."""


@dataclass(frozen=True, slots=True)
class RetryToken:
    """A used retry token: its request, and the result.

    Args:
        turn: of the instance after a power action; a later action on the instance invalidates the token.
    """

    at: float
    request: bytes
    instance_id: str
    work_request_id: str = ""
    turn: int | None = None


@dataclass(slots=True)
class Permitted:
    """Resources that a launch may refer to and that the lab does not simulate further.

    Args:
        tag_keys: by the namespaces of defined tags.
    """

    ids: set[str] = field(default_factory=set)
    tag_keys: dict[str, set[str]] = field(default_factory=lambda: {"Operations": {"CostCenter"}})

    def has(self, kind: str, ident: str) -> bool:
        return ident in self.ids and ident.startswith(f"ocid1.{kind}.")


class Tenancy:
    """All resources of one tenancy in one region."""

    def __init__(self, seed: str, faults: OciFaults = IDEAL, times: OciTimes = USUAL_TIMES, *, now: float) -> None:
        self.seed = seed
        self.times = times
        self.id = model.ocid("tenancy", seed)
        self.compartment_id = model.ocid("compartment", seed, "machines")
        self.agenda = Schedule()
        self.history = CloudHistory()
        self.shapes: dict[str, model.OciShape] = {shape.name: shape for shape in model.SHAPES}
        self.permitted = Permitted()
        self.tokens: dict[str, RetryToken] = {}
        self.images: HistoryMap[model.OciImage] = HistoryMap(views.image_body)
        self.subnets: HistoryMap[model.OciSubnet] = HistoryMap(views.subnet_body)
        self.instances: HistoryMap[model.OciInstance] = HistoryMap(
            lambda each: views.instance_body(each, self.shapes[each.launch.shape])
        )
        self.vnics: HistoryMap[model.Vnic] = HistoryMap(views.vnic_body)
        self.vnic_attachments: HistoryMap[model.Attachment] = HistoryMap(views.vnic_attachment_body)
        self.boot_volumes: HistoryMap[model.Volume] = HistoryMap(views.boot_volume_body)
        self.boot_volume_attachments: HistoryMap[model.Attachment] = HistoryMap(views.boot_volume_attachment_body)
        self.volumes: HistoryMap[model.Volume] = HistoryMap(views.volume_body)
        self.volume_attachments: HistoryMap[model.Attachment] = HistoryMap(views.volume_attachment_body)
        self.work_requests: HistoryMap[model.LabWorkRequest] = HistoryMap(views.work_request_body)
        self._numbers = 0
        self.now = now
        self.set_faults(faults, now)
        for image in model.platform_images(now):
            self.images.put(image, image.created)
        self.vcn_id = model.ocid("vcn", seed)
        self.nsg_id = model.ocid("networksecuritygroup", seed)
        self.kms_key_id = model.ocid("key", seed)
        self.permitted.ids |= {self.nsg_id, self.kms_key_id}
        self.public_subnet = self.add_subnet("public", "10.0.0.0/20", now=now)
        self.private_subnet = self.add_subnet("private", "10.0.16.0/20", now=now, prohibits_public_ip=True)

    # Faults and time

    def set_faults(self, faults: OciFaults, now: float) -> None:
        """Set the faults; counts restart."""
        self.advance(now)
        self.faults = faults
        self._counts = Counts(faults, COUNTS)

    def spend(self, count: str) -> bool:
        """Return whether a fault that counts is still on; each call uses one up."""
        return self._counts.spend(count)

    def advance(self, now: float) -> None:
        """Execute everything that is due by `now`, in order."""
        self.now = max(self.now, now)
        self.agenda.run(self.now)

    def later_for(self, instance: model.OciInstance, due: float, act: Act) -> None:
        """Schedule a step of an instance's action; another action begun in between voids it."""
        turn = instance.turn
        self.agenda.put(due, lambda at: act(at) if instance.turn == turn else None)

    def record(self, at: float, thing: Thing, what: str, detail: str = "") -> None:
        self.history.add(CloudEvent(at, KINDS[type(thing)], thing.name, what, detail, thing.id))

    def new_id(self, kind: str) -> str:
        self._numbers += 1
        return model.ocid(kind, self.seed, self._numbers)

    @property
    def numbers(self) -> int:
        """The number of ids generated so far, which is different for each of them."""
        return self._numbers

    # Resources

    def add_subnet(
        self,
        name: str,
        network: str,
        *,
        now: float,
        prohibits_public_ip: bool = False,
        availability_domain: str | None = None,
    ) -> model.OciSubnet:
        subnet = model.OciSubnet(
            model.ocid("subnet", self.seed, name),
            name,
            self.compartment_id,
            self.vcn_id,
            IPv4Network(network),
            now,
            prohibits_public_ip,
            availability_domain,
            dns_label=name,
        )
        return self.subnets.put(subnet, now)

    def attachments_of(
        self, shelf: HistoryMap[model.Attachment], instance: model.OciInstance
    ) -> Iterator[model.Attachment]:
        """Yield the attachments of an instance that are not DETACHED."""
        return (each for each in shelf if each.instance_id == instance.id and each.is_attached)

    def live(self) -> list[model.OciInstance]:
        """Return instances that are not TERMINATED: each counts against the limit, and costs money."""
        return [instance for instance in self.instances if instance.state in LIVE]

    def powered(self) -> list[model.OciInstance]:
        return [instance for instance in self.instances if instance.is_on]

    def strays(self) -> list[model.Volume | model.Vnic]:
        """Return volumes and VNICs without an existing instance."""
        volumes = [
            *_stray(self.boot_volumes, self._attached_ids(self.boot_volume_attachments)),
            *_stray(self.volumes, self._attached_ids(self.volume_attachments)),
        ]
        return [*volumes, *_stray(self.vnics, self._attached_ids(self.vnic_attachments))]

    def _attached_ids(self, shelf: Iterable[model.Attachment]) -> set[str]:
        live = {instance.id for instance in self.live()}
        return {each.target_id for each in shelf if each.is_attached and each.instance_id in live}

    # Changes

    def begin(self, instance: model.OciInstance, now: float) -> None:
        """Record the start of an action on an instance: it voids the one in progress."""
        instance.turn += 1
        instance.busy_until = now + self.faults.busy_s

    def enter(self, instance: model.OciInstance, state: InstanceState, at: float) -> None:
        """Set an instance's state, and record that."""
        was_on, instance.state = instance.is_on, state
        self.instances.put(instance, at)
        self.record(at, instance, "state", state.value)
        if instance.is_on != was_on:
            self.record(at, instance, "on" if instance.is_on else "off")

    def link(
        self, shelf: HistoryMap[model.Attachment], attachment: model.Attachment, state: model.AttachmentState, at: float
    ) -> None:
        attachment.state = state
        shelf.put(attachment, at)

    def end_volume(self, shelf: HistoryMap[model.Volume], volume: model.Volume, at: float) -> None:
        volume.state, volume.ended = model.ResourceState.TERMINATED, at
        shelf.put(volume, at)
        self.record(at, volume, "deleted")


def _stray(things: Iterable[H], held: set[str]) -> list[H]:
    gone = (model.ResourceState.TERMINATED, model.ResourceState.TERMINATING)
    return [thing for thing in things if thing.id not in held and thing.state not in gone]
