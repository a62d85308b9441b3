"""`python -m unbounded.lab.bmc`: simulated BMCs until Ctrl-C."""

from unbounded.lab.bmc.command import main

raise SystemExit(main())
