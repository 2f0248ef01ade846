"""What a device process is to the system that it runs on. The lowest package of `hearthd.device`."""
