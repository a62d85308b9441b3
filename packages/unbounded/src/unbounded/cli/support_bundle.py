"""The archive of the command `support` while it is filled: each file without secrets, and what is not in it."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from unbounded.cli.plugin.command import CommandSession
from unbounded.cli.support_archive import BoundedArchive
from unbounded.cli.support_redaction import redacted_object

Raw = dict[str, Any]


@dataclass
class SupportBundle:
    """An archive that is being filled.

    Attributes:
        left_out: what is not in it, and why.
    """

    session: CommandSession
    archive: BoundedArchive
    known: Collection[str] = ()
    left_out: list[str] = field(default_factory=list)

    def leave_out(self, text: str) -> None:
        self.left_out.append(redacted_object(text, self.known))

    def add_json(self, name: str, value: Any) -> None:
        """Add a JSON file without secrets."""
        plain = redacted_object(msgspec.to_builtins(value), self.known)
        if not self.archive.add(name, msgspec.json.format(msgspec.json.encode(plain), indent=2).decode() + "\n"):
            self.leave_out(f"{name}: the archive has reached its size")

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
