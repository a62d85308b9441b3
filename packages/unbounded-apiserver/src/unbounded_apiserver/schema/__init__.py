"""Structural schemas of custom resources: defaulting, pruning and validation, compiled to closures.

`compile_schema` checks a schema as kube-apiserver does when a definition is created (`structure`, `rules`, and its
defaults) and returns a `Schema`. A `Schema` defaults and prunes (`shape`), validates (`validate`, `embedded`), and runs
the CEL rules (`evaluate`). `ratchet` ignores errors in values that an update did not change. Messages are those of
kube-apiserver.
"""

from unbounded_apiserver.schema.compile import Draft, Schema, compile_schema
from unbounded_apiserver.schema.errors import FieldError, SchemaError

__all__ = ["Draft", "FieldError", "Schema", "SchemaError", "compile_schema"]
