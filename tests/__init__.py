"""Tests of Hearth: `unit` mirrors the packages, `daemon` runs real daemons and is grouped by feature, `gpu` needs GPUs;
`support` has what they share. `attacks`, `bench`, `fuzz`, `soak` and `environments` are programs as well.
"""
