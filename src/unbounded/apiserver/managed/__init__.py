"""Who set which fields of an object, and server-side apply, which rests on it. Pure: values in, values out.

`fieldsets` are sets of field paths, `typed` walks values of a `Kind` (how lists and maps merge), `kinds` makes kinds
from shapes and schemas, `ownership` keeps metadata.managedFields, and `applying` merges a configuration into an object.
The rules are those of Kubernetes' structured-merge-diff.
"""
