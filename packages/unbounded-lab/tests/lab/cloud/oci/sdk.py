"""Oracle's official SDK, pointed at a simulated cloud. Its calls block: they run in threads, the cloud in the loop."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import cache, cached_property
from typing import Any, Final

import oci
import oci.core
import oci.identity
import oci.work_requests

from tests.lab.cloud.oci.models import annotation, fields_of
from tests.lab.cloud.strict import faults
from unbounded_lab.clock import ManualClock
from unbounded_lab.cloud.oci import LabOci

LIMITS_S: Final = (5.0, 5.0)


class Sdk:
    """The clients that a user of Compute has, without the SDK's own retries: each error is seen once.

    Every answer is held against the SDK's models before it is decoded.
    """

    def __init__(self, cloud: LabOci, **login: Any) -> None:
        self.cloud = cloud
        self._login = login or {"config": cloud.config, "signer": signer(**cloud.config)}

    @cached_property
    def compute(self) -> Any:
        return self._client(oci.core.ComputeClient, oci.core.models)

    @cached_property
    def network(self) -> Any:
        return self._client(oci.core.VirtualNetworkClient, oci.core.models)

    @cached_property
    def storage(self) -> Any:
        return self._client(oci.core.BlockstorageClient, oci.core.models)

    @cached_property
    def identity(self) -> Any:
        return self._client(oci.identity.IdentityClient, oci.identity.models)

    @cached_property
    def work(self) -> Any:
        return self._client(oci.work_requests.WorkRequestClient, oci.work_requests.models)

    def _client(self, kind: Any, models: Any) -> Any:
        client = kind(
            **{"config": {}, **self._login},
            service_endpoint=self.cloud.url,
            timeout=LIMITS_S,
            retry_strategy=oci.retry.NoneRetryStrategy(),
            circuit_breaker_strategy=oci.circuit_breaker.NoCircuitBreakerStrategy(),
        )
        base = client.base_client
        base.session.trust_env = False  # REQUESTS_CA_BUNDLE would go before `verify`
        base.session.verify = self.cloud.ca_file
        base.deserialize_response_data = _strictly(base.deserialize_response_data, models)
        return client

    async def ask(self, call: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Make a call, and return its answer as the SDK's Response."""
        return await asyncio.to_thread(call, *args, **kwargs)

    async def failure(self, call: Callable[..., Any], *args: Any, **kwargs: Any) -> oci.exceptions.ServiceError:
        """The error that a call ends with."""
        try:
            answer = await self.ask(call, *args, **kwargs)
        except oci.exceptions.ServiceError as error:
            return error
        raise AssertionError(f"answered {answer.status}")

    async def state(self, instance_id: str) -> str:
        answer = await self.ask(self.compute.get_instance, instance_id)
        return str(answer.data.lifecycle_state)

    def launch_details(self, **changes: Any) -> Any:
        """LaunchInstanceDetails that the cloud accepts, with some fields changed."""
        tenancy = self.cloud.tenancy
        models = oci.core.models
        image = next(each for each in tenancy.images if each.version == "24.04" and not each.arm)
        return models.LaunchInstanceDetails(
            **{
                "availability_domain": "lAbX:PHX-AD-1",
                "compartment_id": tenancy.compartment_id,
                "display_name": "fresh",
                "shape": "VM.Standard3.Flex",
                "shape_config": models.LaunchInstanceShapeConfigDetails(ocpus=2.0, memory_in_gbs=16.0),
                "source_details": models.InstanceSourceViaImageDetails(source_type="image", image_id=image.id),
                "create_vnic_details": models.CreateVnicDetails(subnet_id=tenancy.public_subnet.id),
                **changes,
            }
        )


@cache
def signer(*, tenancy: str, user: str, fingerprint: str, key_content: str, region: str) -> Any:
    """The signer of a configuration; loading its key takes the SDK longer than a call."""
    return oci.signer.Signer(tenancy, user, fingerprint, None, private_key_content=key_content)


def _strictly(decode: Callable[..., Any], models: Any) -> Callable[..., Any]:
    def decoded(content: bytes, kind: str, *rest: Any) -> Any:
        body = json.loads(content) if content else {}
        if kind == "object":  # of an error
            assert body.keys() == {"code", "message"}, body
        else:
            assert list(faults(body, annotation(kind, models), fields_of)) == []
        return decode(content, kind, *rest)

    return decoded


@asynccontextmanager
async def serving(profile: str = "ideal", **options: Any) -> AsyncIterator[tuple[LabOci, Sdk, ManualClock]]:
    """A cloud with a clock that is moved by hand, and an SDK that speaks to it."""
    clock = ManualClock(time.time())
    async with LabOci(profile=profile, clock=clock, **options) as cloud:
        yield cloud, Sdk(cloud), clock
