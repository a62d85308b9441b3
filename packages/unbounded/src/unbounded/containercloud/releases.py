"""ClusterReleases: their images, their faults and their versions. Pure."""

from __future__ import annotations

from typing import Final

from unbounded.api.container_cloud.cluster import (
    AllowedDistribution,
    ClusterRelease,
    ReleaseDistribution,
    ReleaseReference,
)
from unbounded.fetch.failures import UnusableContent
from unbounded.fetch.reference import Digest, Reference

OCI: Final = "oci://"


def image_reference(distribution: ReleaseDistribution) -> str:
    """Return an image of a release as other components name it: without oci://, and with the digest of checksum."""
    url, checksum = distribution.image.url.removeprefix(OCI), distribution.image.checksum
    return url if not checksum or "@" in url else f"{url}@{checksum}"


def unsupported_image(distribution: ReleaseDistribution) -> str | None:
    """Return the cause for which the image of a distribution cannot be used; None for one that can."""
    image, where = distribution.image, f"allowedDistributions {distribution.id}"
    url = image.url.removeprefix(OCI)
    try:
        reference = Reference.parse(url)
    except UnusableContent as error:
        cause = "only OCI images can be written, as REGISTRY/NAME:TAG or oci://REGISTRY/NAME:TAG"
        return f"{where}: {image.url}: {cause if '://' in url else error}"
    try:
        digest = Digest.parse(image.checksum) if image.checksum else None
    except UnusableContent:
        text = "it must be the digest of the OCI image, as sha256: and 64 hexadecimal digits"
        return f"{where}: image.checksum {image.checksum}: {text}"
    if digest is not None and reference.digest not in (None, digest):
        return f"{where}: image.checksum {digest} is not the digest in {image.url}"
    return None


def release_fault(release: ClusterRelease) -> str | None:
    """Return the cause for which a release cannot be used; None for one that can."""
    return next(filter(None, map(unsupported_image, release.spec.allowed_distributions)), None)


def reference_to(release: ClusterRelease) -> ReleaseReference:
    """Return a release as the status of a Cluster has it."""
    return ReleaseReference(
        name=release.name,
        version=release.spec.version,
        allowed_node_labels=release.spec.allowed_node_labels,
        allowed_distributions=tuple(
            AllowedDistribution(id=one.id, default=one.default) for one in release.spec.allowed_distributions
        ),
    )


def is_version(kubelet: str, release: ClusterRelease) -> bool:
    """Return whether a kubelet has the version of a release, which may lack the v and the last number."""
    desired, there = release.spec.kubernetes.version.removeprefix("v"), kubelet.removeprefix("v")
    return there == desired or (desired.count(".") == 1 and there.startswith(f"{desired}."))
