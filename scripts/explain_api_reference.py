"""Generator of docs/reference/explain-openapi.json: the OpenAPI document of explanations and plans."""

from __future__ import annotations

import json
from typing import Final

from unbounded.explain_api.openapi import document

DOCUMENT: Final = "docs/reference/explain-openapi.json"


def files() -> dict[str, str]:
    """Return the document by its path."""
    return {DOCUMENT: json.dumps(document(), indent=2, ensure_ascii=False) + "\n"}
