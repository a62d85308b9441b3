"""Where images come from, and what the machina of a cluster is told by: pure."""

from __future__ import annotations

from importlib.metadata import version
from typing import Any

import pytest

from unbounded.cli.deploying.images import chosen_image, repository
from unbounded.cli.deploying.live import image_in, mounted_config
from unbounded.cli.deploying.workloads import MACHINA_CONFIG, machina_deployment
from unbounded.cli.plugin.command import USAGE, CliError

TAG = f"v{version('unbounded')}"


@pytest.mark.parametrize(
    ("image", "place"),
    [
        ("ghcr.io/azure/machina:v0.1.0", "ghcr.io/azure/machina"),
        ("registry.example.com:5000/machina", "registry.example.com:5000/machina"),
        ("registry.example.com:5000/a/machina:v1@sha256:abc", "registry.example.com:5000/a/machina"),
        ("machina:dev", "machina"),
    ],
)
def test_an_image_without_its_tag(image: str, place: str) -> None:
    assert repository(image) == place


CHOICES: list[tuple[dict[str, str], str]] = [
    ({"image": "mine:1", "registry": "r.example.com", "there": "x/y:1"}, "mine:1"),
    ({"registry": "r.example.com/", "there": "x/y:1", "beside": "x/z:1"}, f"r.example.com/metalman:{TAG}"),
    ({"there": "r.example.com:5000/our-metalman:old", "beside": "x/z:1"}, f"r.example.com:5000/our-metalman:{TAG}"),
    ({"beside": "r.example.com:5000/a/machina@sha256:abc"}, f"r.example.com:5000/a/metalman:{TAG}"),
    ({"beside": "machina:dev"}, f"metalman:{TAG}"),
]


@pytest.mark.parametrize(("given", "image"), CHOICES, ids=range(len(CHOICES)))
def test_an_image_comes_from_where_it_was_asked_for_and_else_from_where_images_come_now(
    given: dict[str, str], image: str
) -> None:
    assert chosen_image("metalman", **given) == image


def test_an_image_that_nothing_names_is_not_made_up() -> None:
    with pytest.raises(CliError, match="nothing says where the image of metalman comes from") as refused:
        chosen_image("metalman")
    assert refused.value.status == USAGE
    for named in ("deploy/images/metalman/Containerfile", f"REGISTRY/metalman:{TAG}", "--image-registry REGISTRY"):
        assert named in refused.value.next_step


def test_the_configuration_is_the_one_that_is_mounted() -> None:
    deployment: dict[str, Any] = machina_deployment("machina:1")
    assert (mounted_config(deployment), image_in(deployment, "machina")) == (MACHINA_CONFIG, "machina:1")
    (volume,) = [one for one in deployment["spec"]["template"]["spec"]["volumes"] if one["name"] == "config"]
    volume["configMap"]["name"] = "machina-config-7k2g5c9h4t"
    assert mounted_config(deployment) == "machina-config-7k2g5c9h4t"
    volume["emptyDir"] = volume.pop("configMap")
    assert (mounted_config(deployment), mounted_config({}), image_in({}, "machina")) == (
        MACHINA_CONFIG,
        MACHINA_CONFIG,
        "",
    )
