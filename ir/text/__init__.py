"""The IR's text form: `print_module`, `print_function`, `parse_module`, `parse_function`."""

from tkcc.ir.text.parser import parse_function, parse_module
from tkcc.ir.text.printer import print_function, print_module

__all__ = ["parse_function", "parse_module", "print_function", "print_module"]
