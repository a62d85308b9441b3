"""Images as replies show them: those of the marketplace, of a subscription, and of galleries."""

from __future__ import annotations

from typing import Any, Final

from unbounded_lab.cloud.azure.errors import AzureProblem
from unbounded_lab.cloud.azure.model_rules import IMAGE_SIZE_GB
from unbounded_lab.cloud.azure.resources import AzureResources
from unbounded_lab.cloud.azure.rules import ImageOffer, offered
from unbounded_lab.cloud.azure.views import timestamp

PUBLISHED: Final = 1_767_225_600.0


def of_marketplace(estate: AzureResources, subscription: str, location: str, *image: str) -> dict[str, Any]:
    """Return a version of an image, by its publisher, offer, SKU and version.

    Raises:
        Problem: it is not offered.
    """
    publisher, offer, sku, version = image
    match offered(estate, *image):
        case ImageOffer.DEPRECATED:
            raise AzureProblem("ImageDeprecated", publisher=publisher, offer=offer, sku=sku, version=version)
        case ImageOffer.NOT:
            raise AzureProblem("NotFound", detail="Artifact: VMImage was not found.")
    path = f"/Publishers/{publisher}/ArtifactTypes/VMImage/Offers/{offer}/Skus/{sku}/Versions/{version}"
    place = f"/Subscriptions/{subscription}/Providers/Microsoft.Compute/Locations/{location}"
    return {"id": f"{place}{path}", "name": version, "location": location}


def versions_of_marketplace(
    estate: AzureResources, subscription: str, location: str, *image: str
) -> list[dict[str, Any]]:
    """Return the offered versions of an image, by its publisher, offer and SKU."""
    known = estate.images.get(":".join(image).lower())
    if known is None:
        raise AzureProblem("NotFound", detail="Artifact: VMImage was not found.")
    existing = [version for version in known if offered(estate, *image, version) is ImageOffer.YES]
    return [of_marketplace(estate, subscription, location, *image, version) for version in existing]


def managed(estate: AzureResources, image: str, location: str) -> dict[str, Any]:
    """Return an image of the subscription itself.

    Raises:
        Problem: there is none.
    """
    name = image.rpartition("/")[2]
    if image.lower() not in estate.others:
        raise AzureProblem("ResourceNotFound", type="Microsoft.Compute/images", name=name, group=image.split("/")[4])
    common = {"id": image, "name": name, "type": "Microsoft.Compute/images", "location": location}
    return {**common, "properties": {"provisioningState": "Succeeded", "hyperVGeneration": "V2"}}


def version_of_gallery(estate: AzureResources, version: str, location: str) -> dict[str, Any]:
    """Return a version of a gallery's image, by its path; shared and community galleries have a shorter form.

    Raises:
        Problem: there is none.
    """
    if version.lower() not in estate.others:
        raise AzureProblem("NotFound", detail=f"The gallery image version {version} was not found.")
    name = version.rpartition("/")[2]
    if not version.lower().startswith("/subscriptions/"):
        published = {"publishedDate": timestamp(PUBLISHED), "excludeFromLatest": False}
        return {"name": name, "location": location, "identifier": {"uniqueId": version}, "properties": published}
    regions = [{"name": location, "regionalReplicaCount": 1, "excludeFromLatest": False}]
    publishing = {"targetRegions": regions, "excludeFromLatest": False, "publishedDate": timestamp(PUBLISHED)}
    kind = "Microsoft.Compute/galleries/images/versions"
    storage = {"osDiskImage": {"sizeInGB": IMAGE_SIZE_GB, "hostCaching": "ReadWrite"}}
    properties = {"provisioningState": "Succeeded", "publishingProfile": publishing, "storageProfile": storage}
    return {"id": version, "name": name, "type": kind, "location": location, "properties": properties}


def versions_of_gallery(estate: AzureResources, image: str, location: str) -> list[dict[str, Any]]:
    existing = sorted(each for each in estate.others if each.startswith(f"{image.lower()}/versions/"))
    return [version_of_gallery(estate, each, location) for each in existing]
