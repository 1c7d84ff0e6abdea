"""Device operations: one folder per operation, one signature for every backend.

Each folder holds `reference.py` (the definition, plain and clear), and where they exist `cpu.py` and
`triton.py`. This package knows nothing of the other packages. It stays import-light and defines no
`__version__`: transformers probes for an unrelated package of the same name.
"""
