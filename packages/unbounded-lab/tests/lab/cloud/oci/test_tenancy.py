"""A tenancy without a socket: invariants for any requests in any order."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Final

import msgspec
import oci
import oci.core
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from oci._vendor import requests

from tests.lab.cloud.oci.models import annotation, fields_of
from tests.lab.cloud.strict import faults
from unbounded_lab.cloud.oci import OciFaults, OciTimes
from unbounded_lab.cloud.oci.authentication import Issuer, OciAccess, UserApiKey, private_pem, rsa_key
from unbounded_lab.cloud.oci.errors import OciProblem
from unbounded_lab.cloud.oci.launching import launch
from unbounded_lab.cloud.oci.lifecycle import POWER_ACTIONS, InstanceAction, InstanceState
from unbounded_lab.cloud.oci.model import AVAILABILITY_DOMAINS, AttachmentState, ResourceState
from unbounded_lab.cloud.oci.power import act, terminate
from unbounded_lab.cloud.oci.seeding import SeededInstance, newest_ubuntu, seed_instance
from unbounded_lab.cloud.oci.service import OciService
from unbounded_lab.cloud.oci.tenancy import Tenancy
from unbounded_lab.http import LabRequest

SHAPE: Final = "VM.Standard3.Flex"


def body(tenancy: Tenancy, name: str) -> bytes:
    details: Mapping[str, Any] = {
        "availabilityDomain": AVAILABILITY_DOMAINS[0],
        "compartmentId": tenancy.compartment_id,
        "displayName": name,
        "shape": SHAPE,
        "shapeConfig": {"ocpus": 1.0},
        "sourceDetails": {"sourceType": "image", "imageId": newest_ubuntu(tenancy, SHAPE)},
        "createVnicDetails": {"subnetId": tenancy.public_subnet.id},
    }
    return msgspec.json.encode(details)


STEPS: Final = st.one_of(
    st.tuples(st.just("launch"), st.sampled_from(["one", "two", "three"])),
    st.tuples(st.sampled_from([*POWER_ACTIONS, InstanceAction.TERMINATE]), st.integers(0, 3)),
    st.tuples(st.just("wait"), st.sampled_from([0.3, 1.0, 5.0, 50_000.0])),
)
FAULTS: Final = st.builds(
    OciFaults,
    lost_launches=st.integers(0, 2),
    deaf_actions=st.integers(0, 2),
    images_first=st.integers(0, 1),
    moves_first=st.integers(0, 1),
    failing_starts=st.integers(0, 2),
    launch_never_ends=st.booleans(),
    stop_never_ends=st.booleans(),
    vnic_late_s=st.sampled_from([0.5, 3.0]),
    already=st.sampled_from(["refused", "accepted"]),
    reset_shown=st.sampled_from(["transitions", "running"]),
    busy_s=st.sampled_from([0.0, 1.0]),
    terminate=st.sampled_from(["works", "stuck"]),
    terminated_shown=st.booleans(),
    work_requests=st.sampled_from(["shown", "vanish"]),
)


@pytest.mark.slow
@settings(max_examples=100, deadline=None)
@given(FAULTS, st.lists(STEPS, max_size=25))
def test_what_belongs_to_an_instance_follows_it(faults: OciFaults, steps: list[tuple[str, Any]]) -> None:
    now = 1_000_000.0
    tenancy = Tenancy("any", faults, OciTimes(), now=now)
    seed_instance(tenancy, SeededInstance("first"), now)
    for step, how in steps:
        if step == "wait":
            now += how
        tenancy.advance(now)
        with suppress(OciProblem):  # what cannot be done now
            take(tenancy, step, how, now)
        check(tenancy)


def take(tenancy: Tenancy, step: str, how: Any, now: float) -> None:
    every = list(tenancy.instances)
    if step == "launch":
        launch(tenancy, body(tenancy, how), how, now)
    elif step in set(InstanceAction) and every:
        instance = every[how % len(every)]
        if step == InstanceAction.TERMINATE:
            terminate(tenancy, instance, now, keep_boot_volume=False, keep_data_volumes=None)
        else:
            act(tenancy, instance, InstanceAction(step), now)


def check(tenancy: Tenancy) -> None:
    assert tenancy.strays() == []
    made = Counter(each.name for each in tenancy.history.of("Instance") if each.what == "created")
    ended = Counter(each.name for each in tenancy.history.of("Instance") if each.what == "deleted")
    assert made - ended == Counter(each.name for each in tenancy.live())
    on = Counter(each.identity for each in tenancy.history.of("Instance") if each.what == "on")
    off = Counter(each.identity for each in tenancy.history.of("Instance") if each.what == "off")
    assert set(on - off) == {each.id for each in tenancy.live() if each.is_on}
    held = [each for each in tenancy.vnics if each.state is not ResourceState.TERMINATED]
    assert len({each.private_ip for each in held}) == len(held)
    for instance in tenancy.live():
        disks = list(tenancy.attachments_of(tenancy.boot_volume_attachments, instance))
        assert len(disks) == 1
        if instance.state is InstanceState.RUNNING:
            assert disks[0].state is AttachmentState.ATTACHED
    for shelf in (tenancy.instances, tenancy.vnics, tenancy.boot_volumes, tenancy.work_requests):
        assert {each.id for each in shelf} == {each.body["id"] for each in shelf.views_at(tenancy.now)}


@pytest.mark.slow
def test_each_kind_of_call_has_its_own_rate() -> None:
    tenancy, issuer = Tenancy("rates", now=0.0), Issuer("rates")
    api_key = UserApiKey(tenancy.id, "user", rsa_key("rates"))
    service = OciService(tenancy, OciAccess(api_key, issuer), {}, time.time)

    def signed(method: str, path: str) -> LabRequest:
        parts = (api_key.tenancy, api_key.user, api_key.fingerprint)
        signer = oci.signer.Signer(*parts, None, private_key_content=private_pem(api_key.key))
        request = signer(requests.Request(method, f"https://lab/20160918{path}").prepare())
        path, _, query = request.path_url.partition("?")
        return LabRequest(method, path, {name.lower(): value for name, value in request.headers.items()}, b"", query)

    def status(request: LabRequest, now: float) -> int:
        return service.answer(request, service.call(request), now).status

    look, change = signed("GET", f"/instances?compartmentId={tenancy.id}"), signed("DELETE", "/instances/none")
    assert Counter(status(change, 0.0) for _ in range(201)) == {404: 200, 429: 1}
    assert status(look, 0.0) == 200
    assert [status(change, 1.0) for _ in range(11)] == [404] * 10 + [429]
    service.set_faults(OciFaults(rate_limits=False), 1.0)
    assert status(change, 1.0) == 404


RICH: Final[Mapping[str, Any]] = {
    "faultDomain": "FAULT-DOMAIN-1",
    "metadata": {"user_data": "b2xk"},
    "extendedMetadata": {"a": {"b": 1}},
    "freeformTags": {"team": "blue"},
    "definedTags": {"Operations": {"CostCenter": "42"}},
    "agentConfig": {"isMonitoringDisabled": True, "pluginsConfig": [{"name": "Bastion", "desiredState": "ENABLED"}]},
    "availabilityConfig": {"isLiveMigrationPreferred": True, "recoveryAction": "STOP_INSTANCE"},
    "instanceOptions": {"areLegacyImdsEndpointsDisabled": True},
    "launchOptions": {"firmware": "UEFI_64", "networkType": "PARAVIRTUALIZED"},
    "platformConfig": {"type": "INTEL_VM", "isSecureBootEnabled": True},
    "preemptibleInstanceConfig": {"preemptionAction": {"type": "TERMINATE", "preserveBootVolume": False}},
    "licensingConfigs": [{"type": "WINDOWS", "licenseType": "BRING_YOUR_OWN_LICENSE"}],
}
JUNK: Final = st.sampled_from([None, True, -1, 1e300, "x", "", [], {}, [1], {"x": 1}])


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The paths to everything in a JSON value."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(place for name, each in items for place in places(each, (*path, name)))]


@pytest.mark.slow
@settings(max_examples=150, deadline=None)
@given(st.data())
def test_a_launch_with_something_odd_in_it_is_refused_or_made(data: st.DataObject) -> None:
    tenancy = Tenancy("junk", now=0.0)
    details = {**msgspec.json.decode(body(tenancy, "odd")), **msgspec.json.decode(msgspec.json.encode(RICH))}
    *path, last = data.draw(st.sampled_from(places(details)[1:]))
    inner = details
    for name in path:
        inner = inner[name]
    inner[last] = data.draw(JUNK)
    try:
        instance, _ = launch(tenancy, msgspec.json.encode(details), None, 0.0)
    except OciProblem as problem:
        refused = problem.status
        assert refused in (400, 404)
    else:
        shown = msgspec.json.decode(msgspec.json.encode(tenancy.instances.latest(instance).body))
        assert list(faults(shown, annotation("Instance", oci.core.models), fields_of)) == []
