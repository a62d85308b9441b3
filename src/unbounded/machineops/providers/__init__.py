"""The clouds that machine-ops-controller has providers for: one package each, registered by entry point."""
