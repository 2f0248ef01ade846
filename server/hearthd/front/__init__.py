"""The sockets: sessions, health, metrics and the supervision of device processes; knows no CUDA."""
