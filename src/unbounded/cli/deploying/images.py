"""Which image a process gets: what was asked for, else from where the cluster has its images now. Pure."""

from __future__ import annotations

from argparse import Namespace
from importlib.metadata import version

from unbounded.cli.deploying import checks
from unbounded.cli.plugin.command import USAGE, CliError


def require_usable(args: Namespace) -> None:
    """Raises CliError where --image-registry or --image, as far as the command has them, cannot be meant."""
    given = {"--image-registry": checks.registry, "--image": checks.image}
    try:
        for flag, check in given.items():
            if text := getattr(args, flag.strip("-").replace("-", "_"), ""):
                checks.flagged(flag, check, text)
    except checks.BadFlag as error:
        raise CliError(str(error), status=USAGE) from None


def image_of(component: str, registry: str) -> str:
    """The image of this version of a component, such as machina.

    Args:
        registry: empty for none, as engines have it for images that were built on the node.
    """
    path = f"{registry.rstrip('/')}/{component}" if registry else component
    return f"{path}:v{version('unbounded')}"


def chosen_image(component: str, *, image: str = "", registry: str = "", there: str = "", beside: str = "") -> str:
    """The image of this version.

    Args:
        image, registry: what was asked for, in this order; empty for nothing.
        there: what runs now: it goes on coming from the same place, whatever it is called there.
        beside: the image of another component that runs: who has a registry has it for all of them.
    Raises:
        CliError: none of these says where it comes from.
    """
    if image:
        return image
    if registry:
        return image_of(component, registry)
    if there:
        return f"{repository(there)}:v{version('unbounded')}"
    if beside:
        return image_of(component, repository(beside).rpartition("/")[0])
    raise CliError(
        f"nothing says where the image of {component} comes from: it does not run yet, and nobody publishes images",
        next_step=f"`make release` makes it: push it as {image_of(component, 'REGISTRY')}, and give --image-registry"
        " REGISTRY",
        status=USAGE,
    )


def repository(image: str) -> str:
    """An image without its tag and its digest; the port of a registry is none of them."""
    path, slash, name = image.partition("@")[0].rpartition("/")
    return f"{path}{slash}{name.partition(':')[0]}"
