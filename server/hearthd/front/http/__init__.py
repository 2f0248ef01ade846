"""HTTP interface of the daemon: probes, metrics, the status document and its page, and downloads of traces.

Owns the HTTP listener and its responses. Does not cover the content of metrics and status (`hearthd.front.metrics`,
`hearthd.front.rpc.node_status`) or authentication (`hearthd.front.auth`).

Above: `hearthd.front.daemon`. Below: `hearthd.front.metrics`.
"""
