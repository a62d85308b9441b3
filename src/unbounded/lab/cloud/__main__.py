"""`python -m unbounded.lab.cloud`: a simulated cloud until Ctrl-C."""

from unbounded.lab.cloud.command import main

raise SystemExit(main())
