"""The dashboard: its queries are valid and about metrics that exist, and its JSON is of Grafana's schema.

The schema is that of the types which Grafana generates from it, with those of the plugins for queries and options.

`test_rules` proves that the panels show data of a running control plane.
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterator
from enum import Enum, EnumMeta
from pathlib import Path
from types import NoneType
from typing import Any, Final, Literal, Union, get_args, get_origin, get_type_hints

import pytest
import yaml
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.cog.runtime import register_dataquery_variant, register_panelcfg_variant
from grafana_foundation_sdk.models import prometheus, stat, table, timeseries
from grafana_foundation_sdk.models.dashboard import Dashboard
from scripts.dashboard_files import PATH as FILE
from scripts.dashboard_files import ROWS, View

from tests.monitoring.expressions import plain, unknown_in
from tests.monitoring.promtool import needs_promtool, promtool
from tests.support.paths import ROOT

TEXT: Final = (ROOT / FILE).read_text()
BODY: Final[dict[str, Any]] = json.loads(TEXT)
PANELS: Final = [panel for panel in BODY["panels"] if panel["type"] != "row"]
VIEWS: Final = [view for views in ROWS.values() for view in views]
WIDTH: Final = 24
SDK: Final = "grafana_foundation_sdk."

register_dataquery_variant(prometheus.variant_config())
for plugin in (stat, table, timeseries):
    register_panelcfg_variant(plugin.variant_config())


@pytest.mark.parametrize("view", VIEWS, ids=lambda view: view.title)
def test_each_metric_and_label_of_a_panel_is_in_the_reference(view: View) -> None:
    assert list(unknown_in(view.query)) == []
    shown = set(re.findall(r"{{(\w+)}}", view.legend))
    grouped = re.search(r"by \(([^)]*)\)", view.query)
    assert shown <= {label.strip() for label in (grouped[1] if grouped else "").split(",")}


@needs_promtool
def test_all_queries_are_valid(tmp_path: Path) -> None:
    rules = [{"record": f"panel:{number}", "expr": plain(view.query)} for number, view in enumerate(VIEWS)]
    file = tmp_path / "rules.yaml"
    file.write_text(yaml.safe_dump({"groups": [{"name": "panels", "rules": rules}]}))
    assert f"{len(VIEWS)} rules found" in promtool("check", "rules", str(file))


def test_grafanas_types_read_the_dashboard_and_write_the_same() -> None:
    read = Dashboard.from_json(json.loads(TEXT))
    written = json.loads(json.dumps(read, cls=JSONEncoder))
    for panel, own in zip(written["panels"], BODY["panels"], strict=True):
        if panel["type"] != "row" and "custom" not in own["fieldConfig"]["defaults"]:
            panel["fieldConfig"]["defaults"].pop("custom", None)  # the defaults of the plugin
    assert written == BODY
    assert list(misfits(read, Dashboard, "")) == []
    targets = [target for panel in read.panels or () for target in getattr(panel, "targets", ())]
    assert {type(target) for target in targets} == {prometheus.Dataquery}
    assert [target.expr for target in targets] == [view.query for view in VIEWS]


@pytest.mark.parametrize(
    ("old", "new", "place"),
    [
        ('"h": 4,', '"h": "4",', ".panels[1].grid_pos.h"),
        ('"format": "table"', '"format": "chart"', ".format_val"),
        ('"mode": "normal"', '"mode": "stacked"', ".field_config.defaults.custom.stacking.mode"),
        ('"instant": true', '"instant": "yes"', ".targets[0].instant"),
        ('"repeatDirection": "h"', '"repeatDirection": "x"', ".repeat_direction"),
        ('"hide": 0', '"hide": 9', ".templating.list_val[1].hide"),
    ],
)
def test_a_value_that_the_schema_does_not_have_is_found(old: str, new: str, place: str) -> None:
    assert old in TEXT
    found = list(misfits(Dashboard.from_json(json.loads(TEXT.replace(old, new, 1))), Dashboard, ""))
    assert len(found) == 1
    assert place in found[0]


def misfits(value: Any, declared: Any, place: str) -> Iterator[str]:
    """Yield each place of an object whose value is not of the type that its class declares."""
    origin, options = get_origin(declared), get_args(declared)
    if origin is Union:
        fitting = [one for one in options if one is not NoneType or value is None]
        results = [list(misfits(value, one, place)) for one in fitting]
        yield from () if [] in results else results[0]
    elif origin is list and isinstance(value, list):
        for number, item in enumerate(value):
            yield from misfits(item, options[0], f"{place}[{number}]")
    elif origin is dict and isinstance(value, dict):
        for key, item in value.items():
            yield from misfits(item, options[1], f"{place}.{key}")
    elif not _fits(value, origin, declared, options):
        yield f"{place}: {value!r} is not {declared}"
    elif type(value).__module__.startswith(SDK) and not isinstance(value, Enum):
        for name, hint in get_type_hints(type(value)).items():
            yield from misfits(getattr(value, name), hint, f"{place}.{name}")


def _fits(value: Any, origin: Any, declared: Any, options: tuple[Any, ...]) -> bool:
    if origin is Literal:
        return value in options
    if origin is not None:
        return isinstance(value, origin)
    if isinstance(declared, EnumMeta):
        members: list[Enum] = list(declared)
        return value in members or value in [one.value for one in members]
    if isinstance(value, bool):
        return declared in {bool, object, Any}
    return declared is Any or isinstance(value, (int, float) if declared is float else declared)


def test_panels_do_not_overlap_and_fit_the_page() -> None:
    places = [panel["gridPos"] for panel in BODY["panels"]]
    assert all(place["x"] + place["w"] <= WIDTH for place in places)
    for one, other in itertools.combinations(places, 2):
        beside = one["x"] + one["w"] <= other["x"] or other["x"] + other["w"] <= one["x"]
        above = one["y"] + one["h"] <= other["y"] or other["y"] + other["h"] <= one["y"]
        assert beside or above, (one, other)


def test_every_panel_has_the_data_source_of_the_variable() -> None:
    assert {json.dumps(panel["datasource"], sort_keys=True) for panel in PANELS} == {
        '{"type": "prometheus", "uid": "${source}"}'
    }
    assert [variable["name"] for variable in BODY["templating"]["list"]] == ["source", "site"]
