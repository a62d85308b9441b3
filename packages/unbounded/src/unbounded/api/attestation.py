"""Measured boot: the PCRs that a TPM quotes, the meaning of each, and their values in a Machine's status."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Annotated, Final

from unbounded.api.fields import SHA256, ApiStruct, Field, Int32, Time

PCR_MEANING: Final[Mapping[int, str]] = {
    0: "firmware code",
    1: "firmware settings and boot order",
    2: "code of option ROMs and UEFI drivers",
    3: "settings of option ROMs and UEFI drivers",
    4: "boot loader",
    5: "partition table and boot loader settings",
    6: "events of the platform's maker",
    7: "Secure Boot policy and keys",
    11: "unified kernel image and its boot phases",
    12: "kernel command line and credentials of a unified kernel image",
}
"""TCG PC Client Platform Firmware Profile for 0 to 7, systemd-stub for 11 and 12."""


def pcr_text(number: int) -> str:
    """Return a PCR with its meaning: `PCR 7 (Secure Boot policy and keys)`."""
    return f"PCR {number} ({PCR_MEANING[number]})" if number in PCR_MEANING else f"PCR {number}"


def accept_command(machine: str, pcrs: Iterable[int]) -> str:
    """Return the command that installs a Machine again, and accepts other values of these PCRs."""
    flags = " ".join(f"--accept-pcr {one}" for one in sorted(pcrs))
    return f"kubectl unbounded machine replace {machine} {flags}"


class PCRValue(ApiStruct, frozen=True, kw_only=True):
    """The value of one Platform Configuration Register."""

    number: Annotated[Int32, Field("Number of the PCR.", minimum=0, maximum=23)]
    sha256: Annotated[str, Field("Value in the SHA-256 bank.", pattern=SHA256, max_length=64)]


class QuotedBoot(ApiStruct, frozen=True, kw_only=True):
    """A boot, as the TPM quoted it."""

    boot: Annotated[str, Field("Boot, as in status.netboot.boot.", max_length=128)]
    at: Annotated[Time, Field("Time at which metalman verified the quote.")]
    image_digest: Annotated[str | None, Field("Digest of the installed OCI image.", max_length=256)] = None
    accepted_by: Annotated[
        str | None,
        Field("User who accepted other values than those before, by parameters.acceptPCRs.", max_length=1024),
    ] = None
    pcrs: Annotated[
        tuple[PCRValue, ...], Field("Values of the quoted PCRs; empty where the host sent no quote.", max_items=24)
    ] = ()

    @property
    def values(self) -> dict[int, str]:
        """Return the values by the numbers of the PCRs."""
        return {one.number: one.sha256.lower() for one in self.pcrs}

    def deviations(self, reference: QuotedBoot) -> frozenset[int]:
        """Return the PCRs whose values differ from those of the reference, or are in one of the two only."""
        mine, others = self.values, reference.values
        return frozenset(one for one in {*mine, *others} if mine.get(one) != others.get(one))


class TPMStatus(ApiStruct, frozen=True, kw_only=True):
    """The observed state of the TPM."""

    ek_public_key: Annotated[
        str | None,
        Field(
            "Endorsement key, PEM: the one that spec.pxe.attestation names, or the first that proved its identity.",
            max_length=16384,
        ),
    ] = None
    reference: Annotated[
        QuotedBoot | None,
        Field(
            "Boot that later ones are compared with: the first that the TPM quoted, or the last one whose other values "
            "a user accepted. If it is removed, the next boot becomes the reference."
        ),
    ] = None
    quote: Annotated[QuotedBoot | None, Field("Last boot that the TPM quoted.")] = None
