"""The sha256 that a project publishes with a release: a single one, or a list in the format of sha256sum. Pure."""

from __future__ import annotations

import re
from typing import Final

from unbounded.api.failures import Rejected

MOST_BYTES: Final = 64 * 1024
_LINE: Final = re.compile(r"([0-9A-Fa-f]{64})(?:[ \t]+\*?(\S.*?))?\s*")


def sha256_in(text: str, file_name: str, where: str) -> str:
    """Return the digest of a file, 64 digits in lower case.

    Args:
        where: source of the text, for the message.
    Raises:
        Rejected: the text has none for this file.
    """
    found = [match.groups() for line in text.splitlines() if (match := _LINE.fullmatch(line))]
    named = [digest for digest, name in found if name and name.rpartition("/")[2] == file_name]
    if len(found) == 1 and not named:  # a mirror may have renamed the file
        named = [found[0][0]]
    if len(set(map(str.lower, named))) != 1:
        raise Rejected(f"{where}: it holds no single sha256 of {file_name}")
    return str(named[0]).lower()
