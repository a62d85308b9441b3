"""Oracle Cloud Infrastructure: `spec.provider: OCIInstance`, `spec.providerID: oci://<OCID of the instance>`.

`ids`, `states`, `errors` and `logins` are pure: what is meant by what users write and by what the cloud says. `calls`
has the SDK in it, which blocks, and threads for that; `session` looks and asks.
"""

from unbounded.machineops.providers.oci.provider import PROVIDER

__all__ = ["PROVIDER"]
