"""Arguments, errors and exit codes; the commands are in the modules beside this one."""

from __future__ import annotations

import argparse
import os
import sys
import traceback
from collections.abc import Sequence

from tkcc import __version__, settings
from tkcc.ir.errors import TkccError

DONE, NO, BAD_INPUT, INTERRUPTED = 0, 1, 2, 130

_EPILOG = """\
examples:
  tkcc optimize smollm2-135m --backend xla --budget 3m     make a real model faster, here
  tkcc replay tkcc-runs/.../candidate.json                 run the winner again
  tkcc lower smollm2-135m --print                          see a model's IR
  tkcc compare smollm2-135m --targets xla:cpu,xla:tpu-v6e  compare hardware (no TPU needed)
  tkcc rules list                                          what can be rewritten, and how

A model is a built-in name (tkcc models), a folder as transformers saves it or its config.json, a
file of IR text (*.tkir), or package.module:attribute.
Exit codes: 0 done; 1 the answer is no (not faster, not right); 2 bad input; 130 interrupted.
TKCC_DEBUG=1 shows tracebacks; TKCC_CACHE is the folder for downloaded weights.
"""


def parser() -> argparse.ArgumentParser:
    """The parser of all commands."""
    from tkcc.cli import compiling, optimizing, rules

    top = argparse.ArgumentParser(
        prog="tkcc",
        description="Lower a model to a small IR, rewrite it, and keep what is right and faster.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    top.add_argument("--version", action="version", version=f"tkcc {__version__}")
    commands = top.add_subparsers(dest="command", metavar="command", required=True)
    compiling.add_commands(commands)
    optimizing.add_commands(commands)
    rules.add_commands(commands)
    return top


def run(arguments: Sequence[str] | None = None) -> int:
    """Parse and run; errors become one message and an exit code."""
    debug = 0
    try:
        debug = settings.debug()
        options = parser().parse_args(arguments)
        return int(options.run(options))
    except SystemExit as stop:  # argparse has printed its message
        return BAD_INPUT if stop.code not in (0, None) else DONE
    except TkccError as error:
        if debug:
            traceback.print_exc()
        print(f"tkcc: {error}", file=sys.stderr)
        return BAD_INPUT
    except KeyboardInterrupt:
        print("tkcc: interrupted", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:
        # The reader of our output has gone; keep Python from complaining at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return DONE
