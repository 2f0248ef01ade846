"""Sections of the daemon's configuration.

Above: `hearthd.front.opentelemetry`. Below: `hearthd.front.tenancy`.
"""
