"""Structural schemas of custom resources: defaulting, pruning and validation, compiled to closures.

`compile.compile_schema` checks a schema as kube-apiserver does when a definition is created (`structure`, `rules`, and
its defaults) and returns a `Schema`. A `Schema` defaults and prunes (`defaulting`), validates (`validate`, `scalars`),
and runs the CEL rules (`evaluate`). An update ignores errors in values that it does not change. Messages are those of
kube-apiserver.
"""

from unbounded_apiserver.schema.compile import Draft, Schema, compile_schema
from unbounded_apiserver.schema.errors import FieldError, SchemaError

__all__ = ["Draft", "FieldError", "Schema", "SchemaError", "compile_schema"]
