"""Pure decisions: no threads, no CUDA, no sockets; property-tested without hardware."""
