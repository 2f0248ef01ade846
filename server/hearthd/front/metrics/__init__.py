"""Metrics in Prometheus' format: collectors and their families.

Above: `hearthd.front.http`. Below: `hearthd.front.rpc`.
"""
