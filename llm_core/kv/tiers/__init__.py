"""Where pages go that the device has no room for: host memory, then files. `base` says how, and needs no torch."""
