"""Names within an archive or an image, as tuples of components that cannot lead out of it."""

from __future__ import annotations

from typing import Final

from unbounded.fetch.failures import Unusable

Names = tuple[str, ...]  # () is the root

LONGEST_NAME_BYTES: Final = 255  # of one component, as Linux has it
LONGEST_PATH_BYTES: Final = 4096
DEEPEST: Final = 128


def names_of(path: str) -> Names:
    """The components of a member's path; a leading slash and `.` count for nothing.

    Raises:
        Unusable: `..`, a NUL, or more or longer components than a file system takes.
    """
    names = tuple(name for name in path.split("/") if name not in ("", "."))
    if ".." in names:
        raise Unusable(f"{_shown(path)}: leads upwards")
    if "\0" in path:
        raise Unusable(f"{_shown(path)}: has a NUL in it")
    try:
        sizes = [len(name.encode("utf-8", "surrogateescape")) for name in names]
    except UnicodeEncodeError:
        raise Unusable(f"{_shown(path)}: is no text that a file system takes") from None
    if (
        len(names) > DEEPEST
        or max(sizes, default=0) > LONGEST_NAME_BYTES
        or sum(sizes) + len(sizes) > LONGEST_PATH_BYTES
    ):
        raise Unusable(f"{_shown(path)}: is too long or too deep")
    return names


def link_of(target: str, place: Names) -> str:
    """What a symbolic link at `place` may hold: a relative target that stays inside, whatever lies on its way.

    Only leading `..` are taken, at most as many as there are directories above: the link's own directories are no
    links, so these steps are sure. A later `..` would step up from wherever another link had led, and is refused.
    An absolute target means the image's root, and is made relative to it.

    Raises:
        Unusable: it leads out, or could.
    """
    above = len(place) - 1
    steps = [step for step in target.split("/") if step not in ("", ".")]
    if target.startswith("/"):
        while steps and steps[0] == "..":  # above the root is the root
            steps.pop(0)
        steps = [".."] * above + steps
    up = 0
    while up < len(steps) and steps[up] == "..":
        up += 1
    if up > above or ".." in steps[up:]:
        raise Unusable(f"{_shown('/'.join(place))}: the symbolic link to {_shown(target)} leads out, or may")
    names_of("/".join(steps[up:]))
    return "/".join(steps) or "."


def _shown(text: str) -> str:
    return ascii(text if len(text) <= 120 else text[:117] + "...")
