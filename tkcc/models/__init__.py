"""Language models with real weights, written in Flax nnx. See `tkcc.models.registry`."""
