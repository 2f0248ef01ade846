"""The interface of a backend, one page a part; `hearthd.device.cuda` and `hearthd.device.cpu` implement it.

Below: `hearthd.device.platform`.
"""
