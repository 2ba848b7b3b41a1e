"""Built-in prompts."""

from __future__ import annotations

import pytest

from tkcc.models.prompts import PROMPTS, prompt


def test_prompts_have_distinct_names_and_come_in_both_kinds():
    assert len({p.name for p in PROMPTS}) == len(PROMPTS) == 8
    assert {p.chat for p in PROMPTS} == {True, False}
    assert prompt("code").text.startswith("def ")


def test_an_unknown_prompt_lists_the_names():
    with pytest.raises(KeyError, match=r"no prompt 'poem'.*question"):
        prompt("poem")
