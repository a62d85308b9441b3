"""Names within an archive or an image, as tuples of components that cannot leave it."""

from __future__ import annotations

from typing import Final

from unbounded.fetch.failures import UnusableContent

Names = tuple[str, ...]  # () is the root

LONGEST_NAME_BYTES: Final = 255  # of one component, the limit of Linux
LONGEST_PATH_BYTES: Final = 4096
DEEPEST: Final = 128


def names_of(path: str) -> Names:
    """Return the components of a member's path, without a leading slash and `.`.

    Raises:
        UnusableContent: `..`, a NUL, or more or longer components than a file system accepts.
    """
    names = tuple(name for name in path.split("/") if name not in ("", "."))
    if ".." in names:
        raise UnusableContent(f"{_shown(path)}: leads out of the tree")
    if "\0" in path:
        raise UnusableContent(f"{_shown(path)}: contains a NUL byte")
    try:
        sizes = [len(name.encode("utf-8", "surrogateescape")) for name in names]
    except UnicodeEncodeError:
        raise UnusableContent(f"{_shown(path)}: is not a valid file name") from None
    if (
        len(names) > DEEPEST
        or max(sizes, default=0) > LONGEST_NAME_BYTES
        or sum(sizes) + len(sizes) > LONGEST_PATH_BYTES
    ):
        raise UnusableContent(f"{_shown(path)}: is too long or too deep")
    return names


def link_of(target: str, place: Names) -> str:
    """Return the safe target of a symbolic link at `place`: relative, and inside the root whatever other links exist.

    Only leading `..` are accepted, at most as many as there are directories above: the link's own directories are no
    links, so these steps are safe. A later `..` would step up from the target of another link, and is rejected. An
    absolute target is relative to the image's root, and is rewritten as a relative one.

    Raises:
        UnusableContent: it leaves the root, or could.
    """
    above = len(place) - 1
    steps = [step for step in target.split("/") if step not in ("", ".")]
    if target.startswith("/"):
        while steps and steps[0] == "..":  # the parent of the root is the root
            steps.pop(0)
        steps = [".."] * above + steps
    up = 0
    while up < len(steps) and steps[up] == "..":
        up += 1
    if up > above or ".." in steps[up:]:
        raise UnusableContent(
            f"{_shown('/'.join(place))}: the symbolic link to {_shown(target)} leads, or may lead, out of the tree"
        )
    names_of("/".join(steps[up:]))
    return "/".join(steps) or "."


def _shown(text: str) -> str:
    return ascii(text if len(text) <= 120 else text[:117] + "...")
