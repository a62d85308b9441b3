"""Benchmarks of each promise about speed, against a limit or a peer in the same run.

`.venv/bin/python -m benchmarks.NAME [--quick] --json` runs one and prints a JSON object as its last line;
`python -m benchmarks` runs all and writes docs/benchmarks.md. `frame` is their common part, `children` starts the
measured processes.
"""

from __future__ import annotations

import sys

from tests.support.paths import PACKAGES

# the support of tests is spread over the packages; a benchmark has no other way to find it
sys.path += [str(package) for package in PACKAGES if str(package) not in sys.path]
