"""Folders that travel to Ray's nodes and back: whole, or the old one stays."""

import tarfile

import pytest

pytest.importorskip("ray", reason="the extra ray is not installed")

from ding_lite.tools.ray_jobs import pack, unpack


def test_a_folder_comes_back_as_it_was(tmp_path):
    (tmp_path / "run" / "ckpt").mkdir(parents=True)
    (tmp_path / "run" / "ckpt" / "state.json").write_text("new")
    unpack(pack(tmp_path / "run"), tmp_path / "copy")
    assert (tmp_path / "copy" / "ckpt" / "state.json").read_text() == "new"


def test_a_damaged_archive_leaves_the_folder(tmp_path):
    run = tmp_path / "run"
    run.mkdir()
    (run / "state.json").write_text("old" * 10_000)
    with pytest.raises(tarfile.ReadError):
        unpack(pack(run)[:9_000], run)
    assert (run / "state.json").read_text() == "old" * 10_000
    assert [each.name for each in tmp_path.iterdir()] == ["run"]
