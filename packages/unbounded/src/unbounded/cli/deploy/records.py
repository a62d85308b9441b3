"""Records of a CSV or YAML file, with the line of each value. Pure, but for the reading of the file.

A field holds texts as they are written: nothing guesses that `007` is a number. Several values of a field are separated
by semicolons in CSV, and are a list or a mapping in YAML.
"""

from __future__ import annotations

import csv
import difflib
import io
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import yaml

MAX_BYTES: Final = 4 * 1024 * 1024
MAX_RECORDS: Final = 1000
SEPARATOR: Final = ";"
OTHER_SEPARATORS: Final = {";": "a semicolon", "\t": "a tab", "|": "a bar"}  # of programs for spreadsheets
_NULL: Final = "tag:yaml.org,2002:null"


@dataclass(frozen=True, order=True)
class RecordFault:
    """A fault of a file.

    Attributes:
        field: empty for a fault of the whole line.
    """

    line: int
    field: str
    text: str

    def __str__(self) -> str:
        return fault_text((self.line,), self.field, self.text)


def fault_text(lines: Sequence[int], field: str, text: str) -> str:
    """Return a fault that these lines have, in their order, as users see it."""
    where = f"line {lines[0]}" if len(lines) == 1 else f"lines {', '.join(_ranges(lines))}"
    return f"{where}, {field}: {text}" if field else f"{where}: {text}"


def _ranges(lines: Sequence[int]) -> Iterator[str]:
    """Yield lines that follow each other as a range, such as 3-7."""
    begin = last = lines[0]
    for line in (*lines[1:], -1):
        if line != last + 1:
            yield str(begin) if begin == last else f"{begin}-{last}"
            begin = line
        last = line


@dataclass(frozen=True)
class FieldValue:
    """The texts of a field; several only where a list was written, and none for a fault that is reported already."""

    line: int
    texts: tuple[str, ...]


@dataclass(frozen=True)
class FileRecord:
    """The fields of one entry that have a value, by name.

    Attributes:
        line: its first one.
    """

    line: int
    fields: dict[str, FieldValue] = field(default_factory=dict)

    def line_of(self, name: str) -> int:
        value = self.fields.get(name)
        return self.line if value is None else value.line


def read_records(path: Path, fields: Mapping[str, bool]) -> tuple[list[FileRecord], list[RecordFault]]:
    """Return the records of a file and its faults.

    Args:
        fields: the fields that exist, and whether they take several values.

    Raises:
        ValueError: the file cannot be read, or its name ends neither with .csv nor with .yaml, .yml or .json.
    """
    suffix = path.suffix.lower()
    if suffix not in {".csv", ".yaml", ".yml", ".json"}:
        raise ValueError(f"{path} is neither .csv nor .yaml, .yml or .json")
    try:
        with path.open("rb") as file:
            content = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise ValueError(f"cannot read {path}: {error.strerror}") from error
    if len(content) > MAX_BYTES:
        raise ValueError(f"{path} has more than {MAX_BYTES} bytes")
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not UTF-8 at byte {error.start}: save it as UTF-8") from error
    records, faults = parse_csv(text, fields) if suffix == ".csv" else parse_yaml(text, fields)
    if len(records) > MAX_RECORDS:
        raise ValueError(f"{path} has more than {MAX_RECORDS} records: split it")
    return records, faults


def parse_csv(text: str, fields: Mapping[str, bool]) -> tuple[list[FileRecord], list[RecordFault]]:
    """Parse CSV (RFC 4180) whose first line names the fields. Empty cells and lines count as absent."""
    records: list[FileRecord] = []
    faults: list[RecordFault] = []
    rows = _csv_rows(text, faults)
    first = next(rows, None)
    if first is None:
        return [], faults or [RecordFault(1, "", "the file is empty: its first line has to name the fields")]
    heads = [head.strip() for head in first[1]]
    if len(heads) == 1 and (found := [one for one in OTHER_SEPARATORS if one in heads[0]]):
        named = OTHER_SEPARATORS[found[0]]
        return [], [RecordFault(first[0], "", f"{named} separates the names of the fields: write commas, as in CSV")]
    for number, head in enumerate(heads):
        if not head or head in heads[:number]:
            faults.append(RecordFault(first[0], head, "the field is named twice" if head else "a column has no name"))
        elif head not in fields:
            faults.append(RecordFault(first[0], head, _unknown(head, fields)))
    for line, cells in rows:
        if not any(cell.strip() for cell in cells):
            continue
        if len(cells) > len(heads):
            faults.append(RecordFault(line, "", f"{len(cells)} cells in a file of {len(heads)} columns"))
        record = FileRecord(line)
        for head, cell in zip(heads, cells, strict=False):
            if cell.strip() and head in fields:
                parts = cell.split(SEPARATOR) if fields[head] else [cell]
                record.fields[head] = FieldValue(line, tuple(part.strip() for part in parts))
        records.append(record)
    return records, faults


def _csv_rows(text: str, faults: list[RecordFault]) -> Iterator[tuple[int, Sequence[str]]]:
    """Yield the first line of each row, and its cells. The rest of a file behind a fault is not read."""
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    while True:
        line = reader.line_num + 1
        try:
            cells = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            faults.append(RecordFault(line, "", f"not CSV: {error}"))
            return
        yield line, cells


def parse_yaml(text: str, fields: Mapping[str, bool]) -> tuple[list[FileRecord], list[RecordFault]]:
    """Parse YAML that is a list of mappings. Nulls count as absent."""
    try:
        root = yaml.compose(text, Loader=yaml.CSafeLoader)
    except yaml.MarkedYAMLError as error:
        line = 1 if error.problem_mark is None else error.problem_mark.line + 1
        return [], [RecordFault(line, "", f"not YAML: {' '.join(filter(None, (error.context, error.problem)))}")]
    except (yaml.YAMLError, RecursionError) as error:
        return [], [RecordFault(1, "", f"not YAML: {error}")]
    if not isinstance(root, yaml.SequenceNode) or not root.value:
        return [], [RecordFault(1, "", "the file has to be a list of hosts: - site: … with further fields below")]
    records: list[FileRecord] = []
    faults: list[RecordFault] = []
    for item in root.value:
        if isinstance(item, yaml.MappingNode):
            records.append(_yaml_record(item, fields, faults))
        else:
            faults.append(RecordFault(_line(item), "", "a host has to be a mapping of fields"))
    return records, faults


def _yaml_record(item: yaml.MappingNode, fields: Mapping[str, bool], faults: list[RecordFault]) -> FileRecord:
    record, named = FileRecord(_line(item)), set[str]()
    for key, value in item.value:
        name, line = str(key.value) if isinstance(key, yaml.ScalarNode) else "", _line(key)
        if not name or name in named:
            faults.append(RecordFault(line, name, "the field is named twice" if name else "the name is no text"))
            continue
        named.add(name)
        if name not in fields:
            faults.append(RecordFault(line, name, _unknown(name, fields)))
            continue
        try:
            texts = tuple(_yaml_texts(value))
        except ValueError as error:
            faults.append(RecordFault(_line(value), name, str(error)))
            record.fields[name] = FieldValue(_line(value), ())
        else:
            if texts:
                record.fields[name] = FieldValue(_line(value), texts)
    return record


def _yaml_texts(value: yaml.Node) -> Iterator[str]:
    """Yield the texts of a scalar, a list of scalars, or a mapping, as KEY=VALUE. Raises ValueError for others."""
    if isinstance(value, yaml.ScalarNode):
        if value.tag != _NULL:
            yield value.value
        return
    for item in value.value:
        parts = item if isinstance(item, tuple) else (item,)
        if not all(isinstance(part, yaml.ScalarNode) for part in parts):
            raise ValueError("nested too deeply: expected a text, a list of texts, or a mapping of texts")
        yield "=".join(part.value for part in parts)


def _unknown(name: str, fields: Collection[str]) -> str:
    near = difflib.get_close_matches(name, fields, n=1)
    return f"no such field{f'; did you mean {near[0]}?' if near else ''}"


def _line(node: yaml.Node) -> int:
    return int(node.start_mark.line) + 1
