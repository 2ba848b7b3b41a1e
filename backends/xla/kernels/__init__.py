"""Pallas kernels of the XLA backend, one folder each, and what they share.

Every kernel folder exports the same names: `Config`, `reference`, `refuses`, `vmem_bytes`,
`schedules` and the kernel itself, called as the folder is. docs/add-a-pallas-kernel.md states the
contract.
"""
