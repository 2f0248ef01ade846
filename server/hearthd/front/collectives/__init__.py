"""Matching of collective operations over the devices, and their communicators.

Above: `hearthd.front.auth`. Below: `hearthd.front.durable`.
"""
