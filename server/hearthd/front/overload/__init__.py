"""Overload of the front: its level, and the calls that are refused at each level.

It is modelled on envoy's overload manager.

Owns: the levels and their hysteresis (`policy`), the measurements (`readings`), and the manager that measures, reports
in metrics, readiness and the log, and decides (`manager`). Covers the front as a whole; not single tenants (quotas),
not connections, and not the enforcement when the headers of a call arrive (`hearthd.front.admission`).

Above: `hearthd.front.auth`. Below: `hearthd.front.collectives`.
"""
