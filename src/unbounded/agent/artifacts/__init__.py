"""What a node is put together from beside its root file system: where it comes from, and the cache that keeps it.

sources    the table of URLs: pure
checksums  what a source publishes beside an artifact: pure
cache      artifacts by digest, shared by the slots; fetched when they are not there
"""
