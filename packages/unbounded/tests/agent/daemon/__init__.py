"""The daemon of the agent: its identity, its caches and what it carries out."""
