"""Rights of nodes: read their own objects, and write nothing else (Kubernetes' Node authorizer and NodeRestriction)."""
