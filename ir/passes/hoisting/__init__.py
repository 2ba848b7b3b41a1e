"""The parts of `tkcc.ir.passes.hoist`."""
