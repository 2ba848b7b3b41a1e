"""The main job on the real model, through the command line: optimise, replay, compile."""

from __future__ import annotations

import json

import pytest

from tkcc.cli import main
from tkcc.models import registry
from tkcc.models.errors import ModelError

pytestmark = pytest.mark.long
SHAPE = ["--batch", "1", "--context", "112", "--prompt", "64"]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A short run's folder and what it printed."""
    try:
        registry.load("smollm2-135m", "float32")
    except ModelError as error:
        pytest.skip(f"no weights here: {error.what}")
    folder = tmp_path_factory.mktemp("run")
    arguments = ["optimize", "smollm2-135m", "--budget", "45s", *SHAPE, "--out", str(folder)]
    with pytest.MonkeyPatch.context() as patch:
        lines: list[str] = []
        patch.setattr("builtins.print", lambda *args, **_: lines.append(" ".join(map(str, args))))
        code = main([*arguments, "--json", "--require", "1000"])
    assert code == 1, "no program is 1000 times faster, and that was required"
    return folder, json.loads(lines[-1])


def test_a_run_stays_near_its_budget_and_records_every_experiment(run):
    folder, printed = run
    assert printed["seconds"] < 90
    assert printed["experiments"]
    assert printed["verdict"]["right"]
    assert json.loads((folder / "result.json").read_text()) == printed


def test_the_winner_replays_and_speaks(run, capsys):
    folder, printed = run
    assert main(["replay", str(folder / "candidate.json"), "--pairs", "2"]) == 0
    out = capsys.readouterr().out
    assert "as recorded" in out
    assert "right: True" in out
    assert "it says: 'The capital of France is Paris" in out


def test_the_winner_compiles_from_its_file(run, capsys):
    folder, _ = run
    arguments = ["compile", "smollm2-135m", *SHAPE, "--candidate", str(folder / "candidate.json")]
    assert main(arguments) == 0
    assert "Compiled in" in capsys.readouterr().out
