"""The command `hearthd`: serve, demo, check-config, audit and health checks."""
