"""`python -m unbounded_lab.cloud`: a simulated cloud until Ctrl-C."""

from unbounded_lab.cloud.command import main

raise SystemExit(main())
