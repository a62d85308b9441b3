"""The resource types of Unbounded and the names that go with them; `deploy/crd/` is generated from here."""
