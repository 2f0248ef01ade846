"""HTTP beside gRPC: probes, metrics, the status document and its page, downloads of traces.

Owns the HTTP listener and what it answers. Not what metrics and status contain (`front.metrics`, `front.status`), and
not who is who (`front.auth`). Above it: `front.access` and `front.listeners`.
"""
