"""Groups of rows, one in each module: `measure` runs in the parent, everything else in separate processes."""
