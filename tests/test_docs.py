"""The documentation's code runs, and README's commands are the ones that CI runs."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parent.parent


def _blocks(path: Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", path.read_text(), re.MULTILINE | re.DOTALL)


def test_the_tutorial_runs():
    code = "\n".join(_blocks(ROOT / "docs" / "tutorial.md", "python"))
    exec(compile(code, "docs/tutorial.md", "exec"), {})  # noqa: S102  (our own text)


def test_the_rule_in_the_docs_is_right():
    from tkcc.ir.rewrite.check import check_rule
    from tkcc.ir.rewrite.pattern import parse_rules

    (text, *_) = _blocks(ROOT / "docs" / "add-a-rule.md", "")
    (pattern,) = parse_rules(text)
    assert check_rule(pattern, trials=3).ok


def test_readme_has_exactly_two_command_blocks():
    blocks = _blocks(ROOT / "README.md", "sh")
    assert len(blocks) == 2
    assert "tkcc optimize smollm2-135m --backend xla --budget 3m" in blocks[0]
    assert "pytest" in blocks[1]


def test_links_in_the_docs_lead_somewhere():
    for path in [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]:
        for link in re.findall(r"\]\((?!http)([^)#]+)", path.read_text()):
            assert (path.parent / link).exists(), f"{path.name}: {link}"
