"""HTTP beside gRPC: probes, metrics, the status document and its page, downloads of traces.

Owns the HTTP listener and what it answers. Covers neither the content of metrics and status (`hearthd.front.metrics`,
`hearthd.front.rpc.node_status`) nor authentication (`hearthd.front.auth`).

Above: `hearthd.front.daemon`. Below: `hearthd.front.metrics`.
"""
