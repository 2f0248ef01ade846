"""Tenancy policy: the form of tokens, shares of global limits, default quotas, denied certificates.

Covers pure policy and the files that it is read from; not who calls (`front/auth.py`) nor what a tenant has used
(`front/quotas.py`), which use it.
"""
