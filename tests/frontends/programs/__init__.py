"""Small JAX programs that together reach nearly every primitive of JAX."""

from __future__ import annotations

from tests.frontends.programs import arithmetic, arrays, control, linalg, random, transforms
from tests.frontends.programs.program import Program

PROGRAMS: dict[str, Program] = {
    f"{module.__name__.rpartition('.')[2]}: {name}": program
    for module in (arithmetic, arrays, control, linalg, random, transforms)
    for name, program in module.PROGRAMS.items()
}
