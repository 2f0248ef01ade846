"""The daemon: `front/` owns the sockets, `device/` is one device process. They communicate through frames only."""
