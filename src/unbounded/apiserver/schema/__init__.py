"""Structural schemas of custom resources: defaulting, pruning and validation, compiled to closures.

`compile_schema` checks a schema as kube-apiserver does when a definition is created (its structure, its defaults, its
CEL rules and what they may cost) and gives a `Schema`. Messages are those of kube-apiserver.
"""

from unbounded.apiserver.schema.errors import FieldError, SchemaError

__all__ = ["FieldError", "SchemaError"]
