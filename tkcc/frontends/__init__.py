"""From other people's programs to the IR: JAX functions, Flax modules."""
