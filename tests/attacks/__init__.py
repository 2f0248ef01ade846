"""Attacks by unauthenticated clients ("strangers") on a daemon with tenants, and the permitted cost of each.

A row (`rows.Row`) is one attack with its budget. `trial.Trial` starts a daemon and a well-behaved tenant besides the
attack, runs both, and measures the front's memory and descriptors, and the tenant's rate, latency and errors.

The tenant's values during the attack are compared with those before it. A real attacker has its own machine, but here
it shares the daemon's: its process is started, and its data is prepared, before the measurement, and it runs at the
lowest priority. The remaining cost is attributed to the daemon: the kernel's work for the attacker's packets and, on a
machine with few cores, the processor time of the attacker's process. Run each attack for 10 seconds: a tenant makes
about 150 steps per second, and a 99th percentile of fewer than a thousand steps is random.

    python -m tests.attacks                     # every row, as a table
    python -m tests.attacks messages --seconds 10
    pytest tests/attacks                        # the short form, without the budgets of time

A module of rows holds functions `attack(target, seconds)`, which run in a separate process and return counts, and
`ROWS`, a tuple of `Row`. Its name is listed in `rows.MODULES`.
"""
