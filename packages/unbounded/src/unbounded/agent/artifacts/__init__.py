"""Artifacts of a node besides its root file system: their sources, and the cache that stores them.

sources    the table of URLs: pure
checksums  parsing of a source's published checksums: pure
cache      artifacts by digest, shared by the slots; fetched when absent
images     layers of images, likewise
blob_store the folder of both, with records of their sources
"""
