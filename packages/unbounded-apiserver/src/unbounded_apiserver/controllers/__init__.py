"""Background controllers: they accept definitions, empty namespaces, collect garbage, expire events, and more.

Each controller listens to the store, queues the objects that changed, and reconciles one after the other. It acts on
the stored state alone, so that it resumes after a restart.
"""
