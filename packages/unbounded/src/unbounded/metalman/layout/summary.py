"""A layout as text for people."""

from __future__ import annotations

from collections.abc import Iterator

from unbounded.metalman.layout.model import DiskLayout, size_text


def summary(layout: DiskLayout) -> Iterator[str]:
    """Yield lines that describe a layout: its disks with their partitions, then arrays, groups and volumes."""
    yield f"layout {layout.digest} of MachineProfile {layout.profile}"
    words = [line.split() for line in layout.lines]
    systems = {line[2]: line[1] for line in words if line[0] == "filesystem"}
    for line in words:
        if line[0] == "mount":
            systems[line[1]] += f" at {line[2]}"
    for line in words:
        if line[0] == "esp":
            systems[line[1]] += ", with the loader"
    members = {
        member: f"in {what} {name}"
        for what, name, devices in (
            (line[0], line[1], line[5:] if line[0] == "raid" else line[2:])
            for line in words
            if line[0] in ("raid", "group")
        )
        for member in devices
    }
    for disk in layout.disks:
        state = disk.disk.state or "Foreign"
        yield f"  {disk.path} ({disk.disk.name}, {size_text(disk.disk.size_bytes or 0)}, {state})"
        for line in words:
            if line[:2] == ["partition", disk.id]:
                device = f"{disk.id}/{line[2]}"
                size = size_text(int(line[4]) * (disk.disk.sector_bytes or 0))
                yield f"    {line[2]}: {line[7]}, {size}, {systems.get(device) or members.get(device) or 'unused'}"
    for line in words:
        match line:
            case ["raid", name, level, metadata, _, *devices]:
                device = f"raid:{name}"
                use = systems.get(device) or members.get(device) or "unused"
                yield f"  raid{level} /dev/md/{name} of {len(devices)} partitions (metadata {metadata}): {use}"
            case ["volume", group, name, size, kind]:
                shown = "the rest" if size == "rest" else size_text(int(size))
                yield f"  volume {group}/{name}, {shown}, {kind}: {systems.get(f'volume:{group}/{name}') or 'unused'}"
