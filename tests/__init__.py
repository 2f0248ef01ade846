"""Tests of Hearth: `unit` mirrors the packages, `daemon` runs real daemons and is grouped by feature, `gpu` needs GPUs,
`support` has their shared helpers. `attacks`, `bench`, `fuzz`, `soak` and `environments` are also programs.
"""
