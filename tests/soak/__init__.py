"""A daemon under mixed load for a long time: `python -m tests.soak --seconds 3600 --clients 16`."""
