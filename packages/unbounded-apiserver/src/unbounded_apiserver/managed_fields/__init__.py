"""Field ownership of objects, and server-side apply, which is based on it. Pure: values in, values out.

- `fieldsets` are sets of field paths.
- `typed` walks values of a `Kind`, which describes how lists and maps merge.
- `kinds` makes kinds from shapes and schemas.
- `ownership` maintains metadata.managedFields.
- `applying` merges a configuration into an object.

The rules are those of Kubernetes' structured-merge-diff.
"""
