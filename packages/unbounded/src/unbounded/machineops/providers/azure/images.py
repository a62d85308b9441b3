"""Availability of the image that a virtual machine was made of, for each form of an image reference."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from unbounded.machineops import reasons
from unbounded.machineops.provider import Instance, Refusal
from unbounded.machineops.providers.azure.model import Document

_COMPUTE: Final = r"/subscriptions/(?P<subscription>[^/]+)/resourceGroups/([^/]+)/providers/Microsoft\.Compute"
_VERSION: Final = r"(?:/versions/(?P<version>[^/]+))?"
_GONE: Final = frozenset({"failed", "deleting"})


@dataclass(frozen=True)
class ImageForm:
    """A form of image reference.

    Args:
        field: of the imageReference.
        shown_by: operations of the SDK on the image.
        listed_by: operation that lists its versions.
        is_regional: the image belongs to the location of the virtual machine.
        is_own: the login needs the right to read the image to create a VM from it.
    """

    field: str
    pattern: str
    shown_by: str
    listed_by: str = ""
    is_regional: bool = False
    is_own: bool = False


FORMS: Final = (
    ImageForm("id", rf"{_COMPUTE}/images/([^/]+)", "images", is_own=True),
    ImageForm(
        "id",
        rf"{_COMPUTE}/galleries/([^/]+)/images/([^/]+){_VERSION}",
        "gallery_image_versions",
        "list_by_gallery_image",
        is_own=True,
    ),
    ImageForm(
        "sharedGalleryImageId",
        rf"/sharedGalleries/([^/]+)/images/([^/]+){_VERSION}",
        "shared_gallery_image_versions",
        "list",
        is_regional=True,
    ),
    ImageForm(
        "communityGalleryImageId",
        rf"/communityGalleries/([^/]+)/images/([^/]+){_VERSION}",
        "community_gallery_image_versions",
        "list",
        is_regional=True,
    ),
    ImageForm(
        "urn",
        r"([^:]+):([^:]+):([^:]+):(?P<version>[^:]+)",
        "virtual_machine_images",
        "list",
        is_regional=True,
    ),
)


@dataclass(frozen=True)
class VmImage:
    """Image of a virtual machine.

    Args:
        name: as in the imageReference; publisher, offer, SKU and version joined by colons.
        place: arguments of the SDK, without the version.
        version: empty for the latest one.
        location: of the virtual machine.
        subscription: of the image; empty for that of the virtual machine.
    """

    name: str
    form: ImageForm
    place: tuple[str, ...]
    version: str
    location: str
    subscription: str = ""

    async def shown(self, client: Any) -> list[Document]:
        """Return the existing versions, or only the named one."""
        operations = getattr(client, self.form.shown_by)
        if self.version or not self.form.listed_by:
            version = [self.version] if self.version else []
            return [(await operations.get(*self.place, *version)).as_dict()]
        listed = getattr(operations, self.form.listed_by)(*self.place)
        found = [one async for one in listed] if hasattr(listed, "__aiter__") else await listed
        return [one.as_dict() for one in found]

    def instance(self, instance: Instance) -> Instance:
        """Return the instance for the budget of the reads: the limits of the image's own subscription count."""
        return Instance(instance.id, self.subscription or instance.scope, instance.name)

    def missing(self, versions: Iterable[Document]) -> str:
        """Return why none of the existing versions is suitable; empty if one is."""
        if any(self._does(one.get("properties") or {}) for one in versions):
            return ""
        return f"no version of image {self.name} is available in {self.location}"

    def _does(self, version: Document) -> bool:
        publishing: Mapping[str, Any] = version.get("publishingProfile") or version
        regions = publishing.get("targetRegions") or []
        here = [one for one in regions if _normalize_location(one.get("name")) == _normalize_location(self.location)]
        is_left_out = any(bool(one.get("excludeFromLatest")) for one in (publishing, *here))
        is_gone = str(version.get("provisioningState")).lower() in _GONE
        return not is_gone and (bool(self.version) or not is_left_out) and (not regions or bool(here))


def image_of(vm: Document) -> VmImage | str:
    """Return the image of a virtual machine; a description of its reference if the form is unknown."""
    reference: Document = vm["properties"]["storageProfile"]["imageReference"]
    parts = [str(reference.get(name) or "") for name in ("publisher", "offer", "sku", "version")]
    fields = {**reference, "urn": ":".join(parts)}
    for form in FORMS:
        found = re.fullmatch(form.pattern, str(fields.get(form.field) or ""), re.IGNORECASE)
        if found is None:
            continue
        named, location = found.groupdict(), str(vm.get("location"))
        others = found.re.groupindex.values()
        place = tuple(part for number, part in enumerate(found.groups(), 1) if number not in others)
        version = named.get("version") or ""
        return VmImage(
            name=found.string,
            form=form,
            place=(location, *place) if form.is_regional else place,
            version="" if version.lower() == "latest" else version,
            location=location,
            subscription=(named.get("subscription") or "").lower(),
        )
    return ", ".join(f"{name} {value}" for name, value in sorted(reference.items()) if name != "exactVersion")


def possible_loss(image: str, why: str) -> str:
    """Describe the possible loss of an image that could not be read."""
    return f"the availability of its image {image} is unknown ({why}), and a new VM needs it"


def unreadable_loss(image: VmImage, refusal: Refusal) -> str:
    """Describe the possible loss of an image that the login may not read.

    Raises:
        Refusal: without this right no VM can be created from the image.
    """
    if image.form.is_own:
        message = f"image {image.name} cannot be read, so no VM can be created from it; nothing was changed; {refusal}"
        raise Refusal(reasons.AUTH_REFUSED, message) from refusal
    return possible_loss(image.name, str(refusal))


def _normalize_location(location: object) -> str:
    """Normalize the name or display name of a location: westeurope, West Europe."""
    return str(location).replace(" ", "").lower()
