"""The gRPC services, health and reflection, over gRPC and over framed sockets.

Above: `hearthd.front.metrics`. Below: `hearthd.front.admission`.
"""
