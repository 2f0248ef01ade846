// Refused by name: see unsupported.py.
#error HEARTH-UNSUPPORTED: textures and surfaces
