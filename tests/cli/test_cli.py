"""The command line: output, exit codes, one clear error for bad input."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from tests.tiny import tiny_module
from tkcc.cli import main
from tkcc.ir.text import parse_module, print_module

RULE = """
rule ok {
  class exact
  about "Store a weight the other way round."
  given %x: T[*B, K], %w: U[K, N]
  match { %y = linear(%x, %w) }
  replace {
    %t = transpose(%w)
    %y = linear(%x, %t) {transposed=true}
  }
}
"""
SMALL = ["--batch", "1", "--context", "32", "--prompt", "8"]


@pytest.fixture
def tiny_file(tmp_path):
    path = tmp_path / "tiny.tkir"
    path.write_text(print_module(tiny_module()))
    return str(path)


def test_lower_prints_text_that_parses(capsys, tiny_file):
    assert main(["lower", tiny_file, "--print"]) == 0
    text = capsys.readouterr().out
    assert print_module(parse_module(text)) == text


def test_lower_shows_a_summary_of_a_built_in_model_without_weights(capsys):
    assert main(["lower", "smollm2-135m", *SMALL]) == 0
    out = capsys.readouterr().out
    assert "decode" in out
    assert "538 MB" in out


def test_lower_logs_rewrites_and_stops_after_n(capsys, tiny_file):
    arguments = ["lower", tiny_file, "--rules", "merge_qkv,merge_linears", "--log"]
    assert main(arguments) == 0
    everything = capsys.readouterr().out.splitlines()
    assert main([*arguments, "--until", "1"]) == 0
    first = capsys.readouterr().out.splitlines()
    assert len(everything) == 4
    assert first == everything[:1]
    assert "merge_qkv" in first[0]


def test_lower_prints_the_ir_between_passes(capsys, tiny_file):
    assert main(["lower", tiny_file, "--rules", "merge_qkv,merge_linears", "--print-ir"]) == 0
    out = capsys.readouterr().out
    assert out.count("# after ") == 2
    assert out.index("# after merge_qkv") < out.index("# after merge_linears")


def test_compile_reports_what_ran_how(capsys, tiny_file, tmp_path):
    sources = tmp_path / "sources"
    arguments = ["compile", tiny_file, "--report", "--sources", str(sources)]
    assert main(arguments) == 0
    out = capsys.readouterr().out
    assert "attention by xla" in out
    assert any("hlo" in path.name for path in sources.iterdir())


def test_compare_json_has_provenance_per_figure(capsys, tiny_file):
    assert main(["compare", tiny_file, "--targets", "xla:cpu", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["rows"]
    assert {row["function"] for row in rows} == {"prefill", "decode"}
    for row in rows:
        assert row["measured_ms"]["value"] > 0
        assert row["measured_ms"]["provenance"].startswith("measured (")
        assert row["flops"]["provenance"].startswith("estimated (")
        assert row["estimated_ms"]["value"] is None


def test_rules_check_accepts_a_right_rule_and_names_its_error(capsys, tmp_path):
    path = tmp_path / "ok.rules"
    path.write_text(RULE)
    assert main(["rules", "check", str(path), "--trials", "3"]) == 0
    assert "ok  ok (exact): 3 cases" in capsys.readouterr().out


def test_rules_check_says_no_to_a_wrong_rule(capsys, tmp_path):
    path = tmp_path / "wrong.rules"
    wrong = RULE.replace("%t = transpose(%w)", "%s = lax.neg(%w)\n    %t = transpose(%s)")
    path.write_text(wrong)
    assert main(["rules", "check", str(path), "--trials", "3"]) == 1
    assert "WRONG" in capsys.readouterr().out


def test_rules_list_and_show(capsys):
    assert main(["rules", "list"]) == 0
    assert "merge_qkv" in capsys.readouterr().out
    assert main(["rules", "show", "merge_qkv"]) == 0
    assert capsys.readouterr().out.startswith("rule merge_qkv {")


BAD = [
    (["lower", "no-such-model"], "there is no model 'no-such-model'", "smollm2-135m"),
    (["lower", "missing.tkir"], "cannot read IR file", "check the path"),
    (["lower", "no.such:thing"], "cannot import no.such:thing", "installed"),
    (["lower", "smollm2-135m", "--prompt", "999"], "do not fit", "shorter than the context"),
    (["lower", "smollm2-135m", *SMALL, "--rules", "merge_qvk"], "unknown rule", "merge_qkv"),
    (["lower", "smollm2-135m", *SMALL, "--rules", "unroll_scan:99"], "k is '99'", "use one of"),
    (["compile", "smollm2-135m", *SMALL, "--target", "cpu"], "not of the form", "xla:cpu"),
    (["compile", "smollm2-135m", *SMALL, "--target", "xla:abacus"], "no chip 'abacus'", "xla:cpu"),
    (["compile", "smollm2-135m", *SMALL, "--target", "abacus:1"], "abacus", "xla"),
    (["compare", "smollm2-135m", "--targets", "xla:tpu-v99"], "no chip 'tpu-v99'", "xla:tpu-v5e"),
    (["optimize", "smollm2-135m", "--budget", "soon"], "no duration", "3m"),
    (["optimize", "gpt-9"], "no built-in language model", "smollm2-135m"),
    (["optimize", "smollm2-135m", "--max-kl", "-1"], "--max-kl", "positive"),
    (["replay", "nothing.json"], "cannot read candidate", "check the path"),
    (["rules", "show", "merge_qvk"], "unknown rule", "merge_qkv"),
]


@pytest.mark.parametrize(("arguments", "what", "remedy"), BAD, ids=lambda v: str(v)[:40])
def test_bad_input_is_one_clear_error_with_a_remedy(capsys, arguments, what, remedy):
    assert main(arguments) == 2
    captured = capsys.readouterr()
    assert what in captured.err
    assert remedy in captured.err
    assert "Traceback" not in captured.err
    assert not captured.out


@pytest.mark.parametrize(
    "text",
    [
        "",
        "module",
        'module "m"',
        'module "m"\nfunc f { return %x }',
        'module "m"\nfunc f {\n  arg %x: f32[2]\n  %0: f32[2] = lax.nothing(%x)\n  return %0\n}',
    ],
)
def test_malformed_ir_is_refused_with_its_place(capsys, tmp_path, text):
    path = tmp_path / "bad.tkir"
    path.write_text(text)
    assert main(["lower", str(path)]) == 2
    assert f"{path}:" in capsys.readouterr().err


def test_debug_shows_the_traceback(capsys, monkeypatch):
    monkeypatch.setenv("TKCC_DEBUG", "1")
    assert main(["lower", "no-such-model"]) == 2
    assert "Traceback" in capsys.readouterr().err


def test_a_debug_level_that_does_not_parse_is_refused(capsys, monkeypatch):
    monkeypatch.setenv("TKCC_DEBUG", "loud")
    assert main(["models"]) == 2
    assert "TKCC_DEBUG" in capsys.readouterr().err


def test_usage_errors_exit_with_2(capsys):
    assert main(["lower"]) == 2
    assert main(["dance"]) == 2


def test_help_teaches_with_examples(capsys):
    assert main(["--help"]) == 0
    out = capsys.readouterr().out
    assert "tkcc optimize smollm2-135m --backend xla --budget 3m" in out


def test_importing_tkcc_does_not_import_jax():
    code = "import sys, tkcc; sys.exit('jax' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_text_from_outside_is_no_markup_and_cannot_steer_the_terminal(capsys, tmp_path):
    path = tmp_path / "odd.tkir"
    path.write_text(print_module(tiny_module().replace(name="a[red]b\x1b[2Jc")))
    assert main(["lower", str(path)]) == 0
    out = capsys.readouterr().out
    assert "a[red]b\\x1b[2Jc" in out
    assert "\x1b[2J" not in out


def test_rules_list_keeps_brackets(capsys):
    assert main(["rules", "list"]) == 0
    assert "[out, in]" in capsys.readouterr().out
