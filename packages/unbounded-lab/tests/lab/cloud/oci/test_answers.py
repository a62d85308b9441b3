"""Answers of every call of a simulated Oracle cloud, compared with the SDK: headers, pages, filters and models.

Each client of `sdk.py` compares its answers. The SDK's own signers read the logins: `test_access`.
"""

from __future__ import annotations

import inspect
import re
from typing import Any, Final

import oci.core
import pytest

from tests.lab.cloud.oci.sdk import Sdk, serving
from unbounded_lab.cloud.oci import InstanceState, LabOci, OciFaults
from unbounded_lab.cloud.oci.model import OciInstance
from unbounded_lab.cloud.oci.seeding import Disks
from unbounded_lab.cloud.oci.service import CALLS

MODELS: Final = oci.core.models
REQUEST_ID: Final = re.compile(r"[0-9A-F]{32}/[0-9A-F]{32}/[0-9A-F]{32}")
COMPOSITE: Final = oci.core.ComputeClientCompositeOperations
READS: Final = [known.name for known in CALLS["GET"].values()]
LISTS: Final = [name for name in READS if name.startswith("List")]
NO_FILTERS: Final = frozenset(
    {
        *("compartment_id", "limit", "page", "sort_by", "sort_order", "opc_request_id", "work_request_id"),
        *("retry_strategy", "allow_control_chars", "enable_strict_url_encoding"),
    }
)
ENUMERATED: Final = frozenset({"lifecycle_state"})
"""Filters for which the SDK takes some values only."""


def method(sdk: Sdk, name: str) -> Any:
    """The SDK's method for a call."""
    words = re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower()
    clients = (sdk.compute, sdk.network, sdk.storage, sdk.work, sdk.identity)
    return next(getattr(each, words) for each in clients if hasattr(each, words))


def needed(call: Any) -> list[str]:
    return [name for name in inspect.signature(call).parameters if name != "kwargs"]


def options(call: Any) -> list[str]:
    """Return the optional arguments that a method documents."""
    every = re.findall(r"^:param \S+ (\w+):", inspect.getdoc(call) or "", re.MULTILINE)
    return [name for name in every if name not in needed(call)]


def asked(call: Any, values: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments of a read: all required ones, and the compartment if it takes one."""
    return {name: values[name] for name in {*needed(call), *options(call)} & {*needed(call), "compartment_id"}}


def known(cloud: LabOci, instance: OciInstance, work: str) -> dict[str, Any]:
    """A value for each parameter that a read needs."""
    tenancy = cloud.tenancy
    return {
        "compartment_id": tenancy.compartment_id,
        "availability_domain": instance.availability_domain,
        "instance_id": instance.id,
        "image_id": instance.image_id,
        "subnet_id": tenancy.public_subnet.id,
        "vnic_id": next(iter(tenancy.vnics)).id,
        "boot_volume_id": next(iter(tenancy.boot_volumes)).id,
        "volume_id": next(iter(tenancy.volumes)).id,
        "work_request_id": work,
    }


async def lost_launch(sdk: Sdk, clock: Any) -> Any:
    """The answer to a launch that came to nothing, so that there is an error to be read."""
    answer = await sdk.ask(sdk.compute.launch_instance, sdk.launch_details())
    clock.move(2.0)
    return answer


@pytest.mark.slow
async def test_every_call_is_answered_with_what_the_sdk_says() -> None:
    async with serving(faults=OciFaults(lost_launches=1)) as (cloud, sdk, clock):
        worker = cloud.add_instance("worker", vnics=2, data_volumes=Disks(count=2))
        other = cloud.add_instance("other", state=InstanceState.STOPPED)
        answers = {"LaunchInstance": await lost_launch(sdk, clock)}
        values = known(cloud, worker, answers["LaunchInstance"].headers["opc-work-request-id"])
        for name in READS:
            call = method(sdk, name)
            answers[name] = await sdk.ask(call, **asked(call, values))
        compute, details = sdk.compute, MODELS.UpdateInstanceDetails(display_name="renamed")
        answers["UpdateInstance"] = await sdk.ask(compute.update_instance, worker.id, details)
        answers["InstanceAction"] = await sdk.ask(compute.instance_action, other.id, "START")
        answers["TerminateInstance"] = await sdk.ask(compute.terminate_instance, worker.id, preserve_boot_volume=True)
        clock.move(1.0)
        answers["DeleteBootVolume"] = await sdk.ask(sdk.storage.delete_boot_volume, values["boot_volume_id"])
        assert answers.keys() == {each.call for each in cloud.journal}
        assert answers.keys() == {call.name for calls in CALLS.values() for call in calls.values()}
        for name, answer in answers.items():
            assert REQUEST_ID.fullmatch(answer.headers["opc-request-id"]), name
            waits = hasattr(COMPOSITE, f"{method(sdk, name).__name__}_and_wait_for_work_request")
            assert ("opc-work-request-id" in answer.headers) is waits, name
            assert ("etag" in answer.headers) is (answer.data is not None and name not in LISTS), name
        for name in ("LaunchInstance", "UpdateInstance", "TerminateInstance"):
            done = (await sdk.ask(sdk.work.get_work_request, answers[name].headers["opc-work-request-id"])).data
            assert (done.operation_type, bool(done.time_finished)) == (name, True)


@pytest.mark.slow
async def test_every_list_supports_the_pages_and_filters_of_the_sdk() -> None:
    async with serving(faults=OciFaults(lost_launches=1)) as (cloud, sdk, clock):
        worker = cloud.add_instance("worker", vnics=2, data_volumes=Disks(count=2))
        cloud.add_instance("other")
        values = known(cloud, worker, (await lost_launch(sdk, clock)).headers["opc-work-request-id"])
        await sdk.ask(sdk.compute.terminate_instance, worker.id, preserve_data_volumes_created_at_launch=True)
        for name in LISTS:
            call = method(sdk, name)
            args = asked(call, values)
            every = (await sdk.ask(call, **args)).data
            assert len(every) > 1 or name == "ListWorkRequestErrors", name
            if "page" in options(call):
                first = await sdk.ask(call, **args, limit=1)
                assert (len(first.data), first.has_next_page) == (1, len(every) > 1), name
                pages = await sdk.ask(oci.pagination.list_call_get_all_results, call, **args, limit=1)
                assert pages.data == every, name
            for each in set(options(call)) - NO_FILTERS - ENUMERATED:
                assert await found_nothing(sdk, call, args | {each: "ocid1.none"}), (name, each)


async def found_nothing(sdk: Sdk, call: Any, query: dict[str, str]) -> bool:
    """Return whether a filter without matches has an effect: an empty list, or a refusal."""
    try:
        return not (await sdk.ask(call, **query)).data
    except oci.exceptions.ServiceError as error:
        return error.status in (400, 404)


@pytest.mark.slow
async def test_parameters_that_the_service_does_not_know_the_value_of_are_refused() -> None:
    async with serving() as (cloud, sdk, _):
        ident, where = cloud.add_instance("worker").id, cloud.tenancy.compartment_id
        base = sdk.compute.base_client
        for http, path, query in (
            ("GET", "/instances", {"compartmentId": where, "sortBy": "COLOUR"}),
            ("GET", "/instances", {"compartmentId": where, "sortOrder": "UP"}),
            ("GET", "/instances", {"compartmentId": where, "limit": 1001}),
            ("DELETE", f"/instances/{ident}", {"preserveBootVolume": "perhaps"}),
            ("DELETE", f"/instances/{ident}", {"recycleLevel": "SOME"}),
            ("POST", f"/instances/{ident}", {"action": "DANCE"}),
        ):
            call = lambda *given: base.call_api(given[1], given[0], query_params=given[2])  # noqa: E731
            error = await sdk.failure(call, http, path, query)
            assert (error.status, error.code) == (400, "InvalidParameter"), (path, query)
            assert list(query)[-1] in error.message
        assert cloud.alive() == [ident]
