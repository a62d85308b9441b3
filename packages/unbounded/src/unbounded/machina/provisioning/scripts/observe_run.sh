# Report the run of a Machine.
if [ -d "$here" ]; then one_by_one; report; else say none; fi;
