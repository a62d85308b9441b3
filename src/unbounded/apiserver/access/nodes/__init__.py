"""What nodes may do: read what is theirs, and write nothing else (Kubernetes' Node authorizer and NodeRestriction)."""
