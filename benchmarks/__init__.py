"""Each promise about speed, measured against a limit or a peer in the same run.

`.venv/bin/python -m benchmarks.NAME [--quick] --json` runs one and prints a JSON object as its last line;
`python -m benchmarks` runs all and writes docs/benchmarks.md. `frame` is what they share, `children` starts the
processes that are measured.
"""
