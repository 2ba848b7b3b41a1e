from __future__ import annotations

import re
from pathlib import Path

from tkcc.traffic.profiles import built_in, built_in_names

TEXT = (Path(__file__).parents[2] / "docs" / "traffic.md").read_text(encoding="utf-8")


def test_the_examples_run() -> None:
    code = "\n".join(re.findall(r"^```python\n(.*?)^```", TEXT, re.MULTILINE | re.DOTALL))
    exec(compile(code, "docs/traffic.md", "exec"), {})  # noqa: S102  (our own text)


def test_the_table_of_built_in_profiles_has_their_figures() -> None:
    for name in built_in_names():
        (line,) = [line for line in TEXT.splitlines() if line.startswith(f"| `{name}` |")]
        for table in (built_in(name).input, built_in(name).output):
            assert f"| {table.at(0.5):,.0f} / {table.at(0.9):,.0f} |" in line
