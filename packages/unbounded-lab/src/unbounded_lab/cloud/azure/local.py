"""A simulated Azure for a test in the same process."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any, Final
from uuid import uuid5

from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey, RSAPublicKey

from unbounded_lab.clock import LabClock
from unbounded_lab.cloud import jwt
from unbounded_lab.cloud.azure import model, seeding
from unbounded_lab.cloud.azure.login import AUDIENCE, RESOURCE, Application, Federation, LoginEndpoint
from unbounded_lab.cloud.azure.misbehaviours import MISBEHAVIOURS, AzureFaults
from unbounded_lab.cloud.azure.resource_manager import Azure
from unbounded_lab.cloud.azure.resources import ALIVE, NAMESPACE, AzureResources
from unbounded_lab.cloud.azure.seeding import LOCATION, VmShape
from unbounded_lab.cloud.azure.service import ROUTES
from unbounded_lab.cloud.frontend import Cloud
from unbounded_lab.cloud.local import LabCloud, write_private_file
from unbounded_lab.keys import derived

GROUP: Final = "rg-workers"
ISSUER: Final = "https://issuer.lab.invalid"
WORKLOAD: Final = "system:serviceaccount:unbounded-kube:machine-ops-controller"
WORKLOAD_TOKEN_S: Final = 3600.0
NEVER_S: Final = 3650 * 86400.0
"""Lifetime of the token that `environment` names: no kubelet renews its file."""
AGE_S: Final = 86400.0
"""Age of added resources, so that lagging reads show them."""


class LabAzure(LabCloud[AzureFaults]):
    """One Azure tenant in this process: `async with LabAzure() as cloud:` serves Resource Manager and login.

    `cloud.url` is both `base_url` and the credentials' authority.

    Args:
        subscriptions: their number; `cloud.subscription` is the first.
        times: durations of its operations.
    """

    table = MISBEHAVIOURS

    def __init__(
        self,
        name: str = "azure",
        *,
        profile: str = "ideal",
        faults: AzureFaults | None = None,
        subscriptions: int = 1,
        times: model.AzureTimes = model.USUAL_TIMES,
        seed: int = 0,
        clock: LabClock | None = None,
        port: int | None = 0,
    ) -> None:
        super().__init__(name, profile=profile, faults=faults, seed=seed, clock=clock, port=port)
        self._seed = f"{seed}/{name}"
        self.tenant = self._uuid("tenant")
        self.client_id = self._uuid("application")
        self.client_secret = derived(f"{self._seed}/application secret").hex()
        self.subscriptions = tuple(self._uuid(f"subscription {index}") for index in range(subscriptions))
        self._times = times
        self._token_files: list[str] = []

    def _begin(self, faults: AzureFaults, now: float) -> Cloud:  # noqa: ARG002 - there is nothing in it yet that has a time
        self.estate = AzureResources(self.tenant, times=self._times, seed=self._seed)
        for subscription in self.subscriptions:
            self.estate.subscriptions.add(subscription)
            self.estate.groups[subscription, GROUP] = LOCATION
        login = LoginEndpoint(self.tenant, derived(f"{self._seed}/tokens"))
        login.applications[self.client_id] = Application(self.client_id, self.client_secret)
        self.estate.set_faults(faults)
        self.login = login
        return Azure(self.estate, login, ROUTES)

    async def stop(self) -> None:
        await super().stop()
        for path in self._token_files:
            os.unlink(path)

    # Properties for users

    @property
    def subscription(self) -> str:
        return self.subscriptions[0]

    def federate(self, issuer: str, subject: str, key: RSAPublicKey) -> None:
        """Let the application log in with tokens that an issuer issues for a subject."""
        application = self.login.applications[self.client_id]
        federations = (*application.federations, Federation(issuer, subject, key))
        self.login.applications[self.client_id] = Application(self.client_id, self.client_secret, federations)

    def workload_token(self, **claims: Any) -> str:
        """Return a token of the federated service account, as a cluster's issuer gives it.

        Args:
            claims: in place of the usual ones: iss, sub, aud, nbf, exp.
        """
        now = self.clock.now()
        usual = {"iss": ISSUER, "sub": WORKLOAD, "aud": [AUDIENCE], "nbf": now - 1.0, "exp": now + WORKLOAD_TOKEN_S}
        return jwt.signed({**usual, **claims}, self._issuer_key)

    def workload_token_file(self, **claims: Any) -> str:
        """Return the path of a file with such a token, for AZURE_FEDERATED_TOKEN_FILE; the cloud's stop removes it."""
        path = write_private_file(self.workload_token(**claims).encode())
        self._token_files.append(path)
        return path

    @cached_property
    def _issuer_key(self) -> RSAPrivateKey:
        key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
        self.federate(ISSUER, WORKLOAD, key.public_key())
        return key

    def access_token(self) -> str:
        """Return a token for Resource Manager, as a login of the application gives it."""
        application, lifetime_s = self.login.applications[self.client_id], self.estate.faults.token_lifetime_s
        granted = self.login.grant(application, f"{RESOURCE}/.default", self.clock.now(), lifetime_s=lifetime_s)
        return str(granted["access_token"])

    def environment(self) -> dict[str, str]:
        """Return the variables for a cluster's workload."""
        return {
            **super().environment(),
            "AZURE_RESOURCE_MANAGER_ENDPOINT": self.url,
            "AZURE_AUTHORITY_HOST": self.url,
            "AZURE_TENANT_ID": self.tenant,
            "AZURE_CLIENT_ID": self.client_id,
            "AZURE_FEDERATED_TOKEN_FILE": self.workload_token_file(exp=self.clock.now() + NEVER_S),
        }

    # Added resources

    def id_of(self, name: str, *, group: str = GROUP, subscription: str | None = None) -> model.ResourceId:
        return model.ResourceId(subscription or self.subscription, group, model.MACHINES, name)

    def disk_id(self, name: str, *, group: str = GROUP) -> model.ResourceId:
        return self.id_of(name, group=group).sibling(model.DISKS, name)

    def add_machine(
        self, name: str, shape: VmShape | None = None, *, group: str = GROUP, subscription: str | None = None
    ) -> model.ResourceId:
        """Add a virtual machine that has been running for a day.

        Returns:
            Its id; the provider ID is `azure://` and this.

        Raises:
            ValueError: there is one of that name.
        """
        resource = self.id_of(name, group=group, subscription=subscription)
        seeding.add_machine(self.estate, resource, shape or VmShape(), self.now - AGE_S)
        return resource

    def add_disk(self, name: str, *, group: str = GROUP, zones: Sequence[str] = ()) -> model.ResourceId:
        """Add a data disk without an owner; returns its id."""
        disk = self.disk_id(name, group=group)
        seeding.add_disk(self.estate, disk, LOCATION, self.now - AGE_S, zones=tuple(zones))
        return disk

    def set_disk(self, name: str, *, group: str = GROUP, **properties: Any) -> None:
        """Set properties of an existing disk, as an administrator does on the disk itself."""
        disk = self.estate.disks.get(self.disk_id(name, group=group).key)
        if disk is None:
            raise KeyError(name)
        self.estate.put_disk(replace(disk, settings={**(disk.settings or {}), **properties}), self.now)

    def add_nic(self, name: str, *, group: str = GROUP) -> model.ResourceId:
        """Add a network interface without an owner; returns its id."""
        nic = self.id_of(name, group=group).sibling(model.NICS, name)
        seeding.add_nic(self.estate, nic, LOCATION, self.now - AGE_S)
        return nic

    # The true state

    def machines(self) -> dict[str, model.VirtualMachine]:
        """Return the existing virtual machines by name; of two with one name in different groups the later."""
        self.history  # noqa: B018 - what is due happens first
        return {machine.id.name: machine for _, machine in self.estate.machines}

    def power(self, name: str) -> model.VmPower | None:
        """Return the power of an existing machine; None for one without a host.

        Raises:
            KeyError: there is none.
        """
        return self.machines()[name].power

    def alive(self, name: str | None = None) -> list[str]:
        """Return the vmIds of the machines that are on, of all or of those with a name."""
        return [
            machine.vm_id for key, machine in self.machines().items() if machine.power in ALIVE and name in (None, key)
        ]

    def stray_disks(self) -> list[str]:
        """Return the names of disks without a machine."""
        self.history  # noqa: B018
        return [disk.id.name for _, disk in self.estate.disks if disk.owner is None]

    def stray_nics(self) -> list[str]:
        """Return the names of network interfaces without a machine."""
        self.history  # noqa: B018
        return [nic.id.name for _, nic in self.estate.nics if nic.owner is None]

    def custom_data(self, name: str) -> str | None:
        """Return a machine's custom data for its first boot, in Base64; no client can read it back."""
        return self.machines()[name].custom_data

    def _uuid(self, what: str) -> str:
        return str(uuid5(NAMESPACE, f"{self._seed}/{what}"))
