"""The tkcc IR: types, ops, immutable SSA graphs, text form, evaluation, rewriting."""

if __name__ != "tkcc.ir":
    raise ImportError("import this package as tkcc.ir, not as a top-level 'ir'")
