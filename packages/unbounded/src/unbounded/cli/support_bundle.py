"""The archive of the command `support` while it is filled: each file without secrets, and what is not in it."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

from unbounded.cli.plugin.command import CommandSession
from unbounded.cli.support_archive import BoundedArchive
from unbounded.cli.support_redaction import redacted_object

Raw = dict[str, Any]

NAMES_SHOWN: Final = 5  # in a note; the index has all


@dataclass
class SupportBundle:
    """An archive that is being filled.

    Attributes:
        known: secrets that are removed wherever they are.
        left_out: what is not in it, and why.
        names: of the objects that such a text counts, by that text.
    """

    session: CommandSession
    archive: BoundedArchive
    known: Collection[str] = ()
    left_out: list[str] = field(default_factory=list)
    names: dict[str, list[str]] = field(default_factory=dict)

    def leave_out(self, text: str, names: Iterable[str] = ()) -> None:
        """Note what is not in the archive; README.txt has the names, too."""
        plain = redacted_object(text, self.known)
        if plain not in self.names:
            self.left_out.append(plain)
        self.names.setdefault(plain, []).extend(redacted_object(one, self.known) for one in names)

    def add_json(self, name: str, value: Any) -> None:
        """Add a JSON file without secrets."""
        plain = redacted_object(msgspec.to_builtins(value), self.known)
        if not self.archive.add(name, msgspec.json.format(msgspec.json.encode(plain), indent=2).decode() + "\n"):
            self.leave_out(f"{name}: the archive has reached its size")

    def add_text(self, name: str, text: str) -> bool:
        """Add a text without the secrets that their form shows; return False where it does not fit."""
        return self.archive.add(name, redacted_object(text))

    def index(self) -> list[str]:
        """Return what is not in the archive as the lines of a list, with all names."""
        return [line for text in self.left_out for line in (f"- {text}", *(f"  - {one}" for one in self.names[text]))]

    def notes(self) -> list[str]:
        """Return what is not in the archive, a text for each cause, with the first names."""
        return [_note(text, self.names[text]) for text in self.left_out]

    def add_objects(self, name: str, items: Sequence[Raw], most: int) -> None:
        """Add objects as a List; as many as fit into `most` bytes."""
        kept: list[bytes] = []
        left = min(most, self.archive.left)
        for item in items:
            encoded = msgspec.json.encode(redacted_object(item, self.known))
            left -= 2 * len(encoded)  # with white space
            if left < 0:
                self.leave_out(f"{len(items) - len(kept)} of {len(items)} objects of {name}: it has reached its size")
                break
            kept.append(encoded)
        body = {"apiVersion": "v1", "kind": "List", "items": [msgspec.Raw(one) for one in kept]}
        if items and not self.archive.add(
            name, msgspec.json.format(msgspec.json.encode(body), indent=1).decode() + "\n"
        ):
            self.leave_out(f"{name}: the archive has reached its size")


def _note(text: str, names: Sequence[str]) -> str:
    more = [f"and {len(names) - NAMES_SHOWN} more"] if len(names) > NAMES_SHOWN else []
    return f"{text}: {', '.join((*names[:NAMES_SHOWN], *more))}" if names else text
