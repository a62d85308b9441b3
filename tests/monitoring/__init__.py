"""Alert rules, dashboards and traces, with the metrics of real processes."""
