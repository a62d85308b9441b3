"""Cloud providers of machine-ops-controller: one package each, registered by an entry point."""
