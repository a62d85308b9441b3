"""Whether the image that a virtual machine was made of is still to be had, in each form in which one is named."""

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
class Form:
    """A way to name an image.

    Args:
        field: of the imageReference.
        shown_by: the SDK's operations on it.
        listed_by: that which lists its versions.
        is_regional: it is looked for in the location of the virtual machine.
        is_own: nothing can be made of it without the right to read it.
    """

    field: str
    pattern: str
    shown_by: str
    listed_by: str = ""
    is_regional: bool = False
    is_own: bool = False


FORMS: Final = (
    Form("id", rf"{_COMPUTE}/images/([^/]+)", "images", is_own=True),
    Form(
        "id",
        rf"{_COMPUTE}/galleries/([^/]+)/images/([^/]+){_VERSION}",
        "gallery_image_versions",
        "list_by_gallery_image",
        is_own=True,
    ),
    Form(
        "sharedGalleryImageId",
        rf"/sharedGalleries/([^/]+)/images/([^/]+){_VERSION}",
        "shared_gallery_image_versions",
        "list",
        is_regional=True,
    ),
    Form(
        "communityGalleryImageId",
        rf"/communityGalleries/([^/]+)/images/([^/]+){_VERSION}",
        "community_gallery_image_versions",
        "list",
        is_regional=True,
    ),
    Form(
        "urn",
        r"([^:]+):([^:]+):([^:]+):(?P<version>[^:]+)",
        "virtual_machine_images",
        "list",
        is_regional=True,
    ),
)


@dataclass(frozen=True)
class Image:
    """An image of a virtual machine.

    Args:
        name: as its imageReference has it; publisher, offer, SKU and version with colons between.
        place: what the SDK asks for, but for the version.
        version: empty for the latest one.
        location: of the virtual machine.
        subscription: which has it; empty for that of the virtual machine.
    """

    name: str
    form: Form
    place: tuple[str, ...]
    version: str
    location: str
    subscription: str = ""

    async def shown(self, client: Any) -> list[Document]:
        """Its versions that there are, of one that is named only that."""
        operations = getattr(client, self.form.shown_by)
        if self.version or not self.form.listed_by:
            version = [self.version] if self.version else []
            return [(await operations.get(*self.place, *version)).as_dict()]
        listed = getattr(operations, self.form.listed_by)(*self.place)
        found = [one async for one in listed] if hasattr(listed, "__aiter__") else await listed
        return [one.as_dict() for one in found]

    def instance(self, instance: Instance) -> Instance:
        """For which it is looked at: the limits of its own subscription count."""
        return Instance(instance.id, self.subscription or instance.scope, instance.name)

    def missing(self, versions: Iterable[Document]) -> str:
        """Why none of the versions that there are will do; empty where one does."""
        if any(self._does(one.get("properties") or {}) for one in versions):
            return ""
        return f"there is no version of image {self.name} that can be had in {self.location}"

    def _does(self, version: Document) -> bool:
        publishing: Mapping[str, Any] = version.get("publishingProfile") or version
        regions = publishing.get("targetRegions") or []
        here = [one for one in regions if _plain(one.get("name")) == _plain(self.location)]
        is_left_out = any(bool(one.get("excludeFromLatest")) for one in (publishing, *here))
        is_gone = str(version.get("provisioningState")).lower() in _GONE
        return not is_gone and (bool(self.version) or not is_left_out) and (not regions or bool(here))


def of(vm: Document) -> Image | str:
    """The image of a virtual machine that was made of one; how it is named where that is in no form that is known."""
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
        return Image(
            name=found.string,
            form=form,
            place=(location, *place) if form.is_regional else place,
            version="" if version.lower() == "latest" else version,
            location=location,
            subscription=(named.get("subscription") or "").lower(),
        )
    return ", ".join(f"{name} {value}" for name, value in sorted(reference.items()) if name != "exactVersion")


def unsure(image: str, why: str) -> str:
    """What may be lost with a virtual machine whose image could not be looked at."""
    return f"whether its image {image} is still to be had is not known ({why}), and without it no VM can be made"


def unseen(image: Image, refusal: Refusal) -> str:
    """What may be lost where an image may not be looked at.

    Raises:
        Refusal: then nothing could be made of it, either.
    """
    if image.form.is_own:
        told = f"no VM can be made of image {image.name} by who may not read it, and nothing was touched; {refusal}"
        raise Refusal(reasons.AUTH_REFUSED, told) from refusal
    return unsure(image.name, str(refusal))


def _plain(location: object) -> str:
    """A location by its name or by its display name: westeurope, West Europe."""
    return str(location).replace(" ", "").lower()
