"""The parts of `tkcc.ir.passes.roll`."""
