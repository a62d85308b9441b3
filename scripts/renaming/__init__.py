"""The parts of `scripts.rename`: the tree's files, the scopes of a module, and one module for each kind of row.

The package and its tables are removed once the renames are over.
"""
