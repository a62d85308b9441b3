"""Provider of Oracle Cloud Infrastructure: `spec.provider: OCIInstance`, `spec.providerID: oci://<OCID of the
instance>`.

`instances`, `errors`, `logins`, `launch` and `replacement_plan` are pure: they parse the input of users and the
answers of the cloud, and decide the next step. `calls` wraps the blocking SDK in threads. `session` and
`replacement_calls` observe the cloud and request changes.
"""

import os
from typing import Final

from unbounded.machineops.provider import Provider
from unbounded.machineops.providers.oci.calls import OciCalls, wire_of
from unbounded.machineops.providers.oci.provider import OciProvider

__all__ = ["PROVIDER"]

PROVIDER: Final[Provider] = OciProvider(calls=lambda login: OciCalls(login, wire_of(os.environ)))
"""Object of the entry point."""
