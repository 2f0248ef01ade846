"""Overload of the front: how loaded it is, and what it refuses then (envoy's overload manager is the model).

Owns: the levels and their hysteresis (`policy`), what is measured (`readings`), and the manager that measures, says so
in metrics, readiness and the log, and decides (`manager`). Covers the front as a whole, not single tenants (quotas),
connections, or the refusal of calls by level when their headers arrive (`hearthd.front.admission`).

Above: `hearthd.front.auth`. Below: `hearthd.front.collectives`.
"""
