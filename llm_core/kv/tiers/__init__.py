"""Where pages go that the device has no room for: host memory, then files. `base` is the interface, free of torch."""
