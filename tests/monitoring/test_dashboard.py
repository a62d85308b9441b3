"""The dashboard: its queries are valid and about metrics that exist, and its JSON is of Grafana's schema.

`test_rules` proves that the panels show data of a running control plane.
"""

from __future__ import annotations

import itertools
import json
import re
from pathlib import Path
from typing import Any, Final

import pytest
import yaml
from grafana_foundation_sdk.cog.encoder import JSONEncoder
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
    assert json.loads(json.dumps(read, cls=JSONEncoder)) == BODY
    assert [panel["targets"][0]["expr"] for panel in PANELS] == [view.query for view in VIEWS]


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
