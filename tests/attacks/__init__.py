"""Attacks by strangers on a daemon with tenants, and what each may cost.

A row (`rows.Row`) is one attack with its budget. `trial.Trial` starts a daemon with a well-behaved tenant beside the
attack, runs both, and measures the front's memory and descriptors, and the tenant's rate, latency and errors.

The tenant before the attack is the measure for the tenant during it. A stranger has a machine to itself, and here it
shares the daemon's: its process is started, and what it sends is made, before anything is measured, and it runs at the
lowest priority. What remains counts against the daemon: the kernel's work for the stranger's packets, and on a machine
with few cores what the stranger's process takes all the same. Give it 10 seconds: a tenant makes some 150 steps in one,
and a 99th percentile of fewer than a thousand is a matter of chance.

    python -m tests.attacks                     # every row, as a table
    python -m tests.attacks messages --seconds 10
    pytest tests/attacks                        # the short form, without the budgets of time

A module of rows holds functions `attack(target, seconds)`, which run in a separate process and return counts, and
`ROWS`, a tuple of `Row`. Its name stands in `rows.MODULES`.
"""
