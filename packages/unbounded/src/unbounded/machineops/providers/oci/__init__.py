"""Provider of Oracle Cloud Infrastructure: `spec.provider: OCIInstance`, `spec.providerID: oci://<OCID of the
instance>`.

`instances`, `errors`, `logins`, `launch` and `replacement_plan` are pure: they parse the input of users and the
answers of the cloud, and decide the next step. `sdk_client` wraps the blocking SDK in threads. `provider` and
`replacement_calls` observe the cloud and request changes; `work_requests` follows its long calls.
"""

import os
from typing import Final

from unbounded.machineops.provider import Provider
from unbounded.machineops.providers.oci.provider import OciProvider
from unbounded.machineops.providers.oci.sdk_client import OciClient, wire_of

__all__ = ["PROVIDER"]

PROVIDER: Final[Provider] = OciProvider(calls=lambda login: OciClient(login, wire_of(os.environ)))
"""Object of the entry point."""
