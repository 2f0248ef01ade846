"""Benchmarks, each with its baseline in the same run: `python -m tests.bench` (`make bench`). See README.md."""
