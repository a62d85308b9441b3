"""The commands, as rows of tables; what they do is imported when one is run."""
