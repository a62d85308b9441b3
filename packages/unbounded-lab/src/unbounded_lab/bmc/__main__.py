"""`python -m unbounded_lab.bmc`: simulated BMCs until Ctrl-C."""

from unbounded_lab.bmc.command import main

raise SystemExit(main())
