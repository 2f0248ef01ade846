"""Attacks by strangers on a daemon with tenants, and what each may cost.

A row (`rows.Row`) is one attack with its budget. `trial.run` starts a daemon with a well-behaved tenant beside the
attack, runs both, and measures the front's memory and descriptors, and the tenant's rate, latency and errors.

    python -m tests.attacks                     # every row, as a table
    python -m tests.attacks messages --seconds 10
    pytest tests/attacks                        # the short form, without the budgets of time

A module of rows holds functions `attack(target, seconds)`, which run in a process of their own and return counts, and
`ROWS`, a tuple of `Row`. Its name stands in `rows.MODULES`.
"""
