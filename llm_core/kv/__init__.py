"""The two KV pools: pages and sequences as integers (`pages`, `dual`), and the tensors behind (`storage`)."""
