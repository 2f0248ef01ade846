"""Overload of the front: how loaded it is, and what it refuses then (envoy's overload manager is the model).

Owns: the levels and their hysteresis (`policy`), what is measured (`readings`), the manager that measures, says so in
metrics, readiness and the log, and decides (`manager`), and the refusal of calls by level when their headers arrive
(`admission`). Covers the front as a whole, not single tenants (quotas) or connections. The daemon is above; below are
settings, metrics and the kernel.
"""
