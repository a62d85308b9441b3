"""Field ownership of objects, on which server-side apply is based. Values in, values out.

- `fieldsets` are sets of field paths.
- `merge` compares and merges values of a `MergeKind`, which describes how lists and maps merge. It makes these
  from shapes and schemas.
- `ownership` maintains metadata.managedFields, and `encoding` has their stored form.

The rules are those of Kubernetes' structured-merge-diff.
"""
