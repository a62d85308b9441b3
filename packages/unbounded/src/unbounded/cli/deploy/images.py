"""Image of a component: from the flags, else from the repository of the running image. Pure."""

from __future__ import annotations

from argparse import Namespace
from importlib.metadata import version

from unbounded.cli.deploy import validation
from unbounded.cli.plugin.command import USAGE, CliError


def require_usable(args: Namespace) -> None:
    """Raise CliError where --image-registry or --image is invalid, as far as the command has these flags."""
    given = {"--image-registry": validation.registry, "--image": validation.image}
    try:
        for flag, check in given.items():
            if text := getattr(args, flag.strip("-").replace("-", "_"), ""):
                validation.flagged(flag, check, text)
    except validation.BadFlag as error:
        raise CliError(str(error), status=USAGE) from None


def image_of(component: str, registry: str) -> str:
    """Return the image of this version of a component, such as machina.

    Args:
        registry: empty for none, which is the form of images that were built on the node.
    """
    path = f"{registry.rstrip('/')}/{component}" if registry else component
    return f"{path}:v{version('unbounded')}"


def chosen_image(component: str, *, image: str = "", registry: str = "", there: str = "", beside: str = "") -> str:
    """Return the image of this version.

    Args:
        image, registry: the flags, in order of precedence; empty where they were not given.
        there: the running image; a new version comes from the same repository, whatever its name is.
        beside: the running image of another component: one registry has the images of all components.

    Raises:
        CliError: none of these gives the source.
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
        f"no image is known for {component}: it does not run yet, and the project publishes no images",
        next_step=f"build it with `make release`, push it as {image_of(component, 'REGISTRY')}, and give "
        "--image-registry REGISTRY",
        status=USAGE,
    )


def repository(image: str) -> str:
    """Return an image without its tag and its digest, but with the port of its registry."""
    path, slash, name = image.partition("@")[0].rpartition("/")
    return f"{path}{slash}{name.partition(':')[0]}"
