"""Oracle Cloud Infrastructure: `spec.provider: OCIInstance`, `spec.providerID: oci://<OCID of the instance>`.

`ids`, `states`, `errors`, `logins`, `launch` and `replacement` are pure: what is meant by what users write and by what
the cloud says, and what comes next. `calls` has the SDK in it, which blocks, and threads for that; `session` and
`replacing` look and ask.
"""

import os
from typing import Final

from unbounded.machineops.provider import Provider
from unbounded.machineops.providers.oci.calls import Calls, wire_of
from unbounded.machineops.providers.oci.provider import OciProvider

__all__ = ["PROVIDER"]

PROVIDER: Final[Provider] = OciProvider(calls=lambda login: Calls(login, wire_of(os.environ)))
"""What the entry point leads to."""
