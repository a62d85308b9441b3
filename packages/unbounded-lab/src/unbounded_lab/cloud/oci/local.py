"""A simulated Oracle cloud in this process: its endpoint, its metadata service, its credentials and its machines."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from aiohttp import web

from unbounded_lab.clock import LabClock
from unbounded_lab.cloud import jwt
from unbounded_lab.cloud.local import LabCloud
from unbounded_lab.cloud.oci.authentication import (
    METADATA,
    TOKEN_S,
    VALID_TO,
    InstancePrincipal,
    Issuer,
    OciAccess,
    UserApiKey,
    Workload,
    private_pem,
    rsa_key,
)
from unbounded_lab.cloud.oci.misbehaviours import TABLE, OciFaults
from unbounded_lab.cloud.oci.model import REGION, OciInstance, digest, ocid
from unbounded_lab.cloud.oci.seeding import SeededInstance, seed_instance
from unbounded_lab.cloud.oci.service import FEDERATION, WORKLOAD, OciService
from unbounded_lab.cloud.oci.tenancy import USUAL_TIMES, OciTimes, Tenancy
from unbounded_lab.http import LabRequest
from unbounded_lab.listener import HOST, LabListener, send, server

PASSPHRASE: Final = "lab"  # noqa: S105 - of a key that lives as long as this process


class LabOci(LabCloud[OciFaults]):
    """One tenancy in one region; `async with` serves it at `url`.

    Args:
        times: durations of its actions.
        wall: the time of clients that sign requests, where `clock` differs.
    """

    table = TABLE

    def __init__(
        self,
        name: str = "oci",
        *,
        profile: str = "ideal",
        faults: OciFaults | None = None,
        times: OciTimes = USUAL_TIMES,
        seed: int = 0,
        clock: LabClock | None = None,
        wall: Callable[[], float] = time.time,
        port: int | None = 0,
    ) -> None:
        super().__init__(name, profile=profile, faults=faults, seed=seed, clock=clock, port=port)
        self._times = times
        self._wall = wall
        self._text = f"{seed}/{name}"
        self._issuer = Issuer(self._text)

    def _begin(self, faults: OciFaults, now: float) -> OciService:
        tenancy = self._tenancy = Tenancy(self._text, faults, self._times, now=now)
        self.api_key = UserApiKey(tenancy.id, ocid("user", self._text), rsa_key(f"{self._text}/user"))
        self._principal = InstancePrincipal(self._text, tenancy.id, tenancy.compartment_id, self._issuer)
        claims = {
            "sub": ocid("cluster", self._text),
            "ptype": "resource",
            "res_tenant": tenancy.id,
            "res_compartment": tenancy.compartment_id,
        }
        account = {
            "sub": "system:serviceaccount:unbounded-kube:machine-ops-controller",
            "exp": int(VALID_TO.timestamp()),
        }
        token = jwt.signed_by_secret(account, digest(self._text, "service account"))
        self._workload = Workload(token, claims, self._issuer)
        logins = {FEDERATION: self._principal.token, WORKLOAD: self._workload.token}
        return OciService(tenancy, OciAccess(self.api_key, self._issuer), logins, self._wall)

    async def start(self) -> None:
        await super().start()
        self._metadata_door: LabListener | None = None
        if self._port is not None:
            self._metadata_door = LabListener(server(self._answer_metadata), 0, None)
            await self._metadata_door.open()

    async def stop(self) -> None:
        if self._metadata_door is not None:
            await self._metadata_door.close()
        await super().stop()

    async def _answer_metadata(self, http: web.BaseRequest) -> web.StreamResponse:
        headers = {name.lower(): value for name, value in http.headers.items()}
        return await send(http, self._principal.metadata(LabRequest(http.method, http.path, headers)))

    # Credentials

    @property
    def config(self) -> dict[str, str]:
        """A client configuration of the SDK, with the API key."""
        return {
            "tenancy": self.tenancy.id,
            "user": self.api_key.user,
            "fingerprint": self.api_key.fingerprint,
            "key_content": private_pem(self.api_key.key),
            "region": REGION,
        }

    @property
    def secret_data(self) -> dict[str, str]:
        """The same, as the Secret of a MachineOperationCredential; the key is encrypted."""
        return {
            "tenancyOCID": self.tenancy.id,
            "userOCID": self.api_key.user,
            "region": REGION,
            "fingerprint": self.api_key.fingerprint,
            "privateKey": private_pem(self.api_key.key, PASSPHRASE),
            "privateKeyPassphrase": PASSPHRASE,
        }

    @property
    def federation_endpoint(self) -> str:
        """The URL at which an instance principal gets its token."""
        return f"{self.url}{FEDERATION}"

    @property
    def metadata_url(self) -> str:
        """The metadata service, for OCI_METADATA_BASE_URL; raises ValueError for a cloud without a port."""
        if self._metadata_door is None:
            raise ValueError("a cloud without a port has no metadata service")
        return f"http://{HOST}:{self._metadata_door.port}{METADATA}"

    @property
    def service_account_token(self) -> str:
        """The credential with which a cluster's workload gets its token from the proxy at the cloud's address."""
        return self._workload.service_account_token

    def environment(self) -> dict[str, str]:
        """Return the variables for an instance principal, which clients without an API key are."""
        return {
            **super().environment(),
            "OCI_CORE_ENDPOINT": self.url,
            "OCI_SDK_AUTH_CLIENT_REGION_URL": self.url,
            "OCI_METADATA_BASE_URL": self.metadata_url,
        }

    def resource_principal(self, folder: Path, *, lifetime_s: float = TOKEN_S) -> Mapping[str, str]:
        """Write token and key of a workload into a folder; returns the environment for the SDK."""
        key = rsa_key(f"{self._text}/workload")
        token = self._workload.token_for(key.public_key(), now=self._wall(), lifetime_s=lifetime_s)
        for name, text in {"rpst": token, "private.pem": private_pem(key)}.items():
            (folder / name).write_text(text)
        return {
            "OCI_RESOURCE_PRINCIPAL_VERSION": "2.2",
            "OCI_RESOURCE_PRINCIPAL_RPST": str(folder / "rpst"),
            "OCI_RESOURCE_PRINCIPAL_PRIVATE_PEM": str(folder / "private.pem"),
            "OCI_RESOURCE_PRINCIPAL_REGION": REGION,
        }

    # The true state

    @property
    def tenancy(self) -> Tenancy:
        """All resources in their true state now."""
        self._tenancy.advance(self.clock.now())
        return self._tenancy

    @property
    def faults(self) -> OciFaults:
        return self._tenancy.faults

    def add_instance(self, name: str, **requested: Any) -> OciInstance:
        """Add an existing instance with its resources; the arguments are those of `SeededInstance`."""
        return seed_instance(self.tenancy, SeededInstance(name, **requested), self.clock.now())

    def machines(self) -> dict[str, OciInstance]:
        """Return the instances that are not TERMINATED, by OCID."""
        return {each.id: each for each in self.tenancy.live()}

    def alive(self, name: str | None = None) -> list[str]:
        """Return the OCIDs of the instances that are on, of all or of those with a display name."""
        return [each.id for each in self.tenancy.powered() if name in (None, each.name)]

    def strays(self) -> list[str]:
        """Return OCIDs of boot volumes, data volumes and VNICs without an existing instance."""
        return [each.id for each in self.tenancy.strays()]
