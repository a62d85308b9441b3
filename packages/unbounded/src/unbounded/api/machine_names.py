"""Names of objects and of Machines, and the Machine's name that a site and a host give. Pure."""

from __future__ import annotations

import re

from unbounded.api import fields
from unbounded.api.machine import MAX_MACHINE_NAME


def object_name(text: str) -> str:
    """Check the name of an object."""
    if not re.fullmatch(fields.DNS_SUBDOMAIN, text) or len(text) > 253:
        raise ValueError(
            f"{text!r} is not a name: a-z, 0-9, '-' and '.', with a letter or a digit at both ends of each part"
        )
    return text


def machine_name(text: str) -> str:
    """Check the name of a Machine, which its Node gets too."""
    if len(object_name(text)) > MAX_MACHINE_NAME:
        raise ValueError(
            f"{text!r} has {len(text)} characters; a Machine's name becomes the name of its Node and has at "
            f"most {MAX_MACHINE_NAME}: choose another with --name"
        )
    return text


def sanitised(text: str) -> str:
    """Convert a text to the form of object names: 10.0.0.5:2222 becomes 10.0.0.5-2222."""
    plain = re.sub(r"-+", "-", re.sub(r"[^a-z0-9.-]", "-", text.lower()))
    return re.sub(r"[-.]*\.[-.]*", ".", plain).strip("-.")


def name_of(site: str, text: str) -> str:
    """Return SITE-NAME, or SITE-HOST where there is no name: 10.0.0.5:2222 in site rack1 is rack1-10.0.0.5-2222.

    Raises:
        ValueError: it cannot be the name of a Node.
    """
    return machine_name(f"{site}-{sanitised(text)}")
