"""A daemon under mixed work for a long time: `python -m tests.soak --seconds 3600 --clients 16`."""
