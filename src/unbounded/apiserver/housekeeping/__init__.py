"""What an API server does by itself: accept definitions, empty namespaces, collect garbage, expire events.

Each keeper listens to the store, notes which object to look at, and looks at one after the other: what it does follows
from what is there, so that a restart carries on.
"""
