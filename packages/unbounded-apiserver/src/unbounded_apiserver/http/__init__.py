"""The API over HTTP: paths, content types, tables, discovery and watch streams."""
