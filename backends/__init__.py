"""Backends: one folder each, all behind the contract in `tkcc.backends.base`."""

if __name__ != "tkcc.backends":
    raise ImportError("import this package as tkcc.backends, not as a top-level 'backends'")
