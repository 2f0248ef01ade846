"""Behaviour of a real daemon, driven over real sockets by the real client and by plain stubs."""
