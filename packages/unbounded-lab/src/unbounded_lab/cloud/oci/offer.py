"""An Oracle cloud, as `unbounded lab cloud` serves it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from unbounded_lab.cloud.cloud_offer import CloudOffer
from unbounded_lab.cloud.oci.local import LabOci
from unbounded_lab.cloud.oci.seeding import Disks


def _add(cloud: LabOci, name: str, data_disks: int) -> str:
    return f"oci://{cloud.add_instance(name, data_volumes=Disks(count=data_disks)).id}"


def _shown(cloud: LabOci) -> Mapping[str, str]:
    tenancy = cloud.tenancy
    return {
        "tenancy": tenancy.id,
        "compartment": tenancy.compartment_id,
        "user": cloud.api_key.user,
        "key fingerprint": cloud.api_key.fingerprint,
    }


OFFER: Final = CloudOffer(
    about="Oracle Compute, with API keys and instance principals",
    provider="OCIInstance",
    start=LabOci,
    add=_add,
    secret=lambda cloud: cloud.secret_data,
    shown=_shown,
)
