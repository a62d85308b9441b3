"""The commands as rows of tables; the module behind a command is imported when it runs."""
