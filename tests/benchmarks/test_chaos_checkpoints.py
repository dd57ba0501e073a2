"""Killed writers, damaged files and full disks, counted."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmark.chaos.checkpoints import damage_files, damaged
from benchmark.chaos.limits import can_mount, save_on_full_disk


def test_damaged_files_are_refused(tmp_path: Path):
    assert damage_files(500, tmp_path) == {
        "damaged": 500, "refused": 500, "silent": 0, "crashed": 0,
    }  # fmt: skip


@given(st.binary(min_size=1, max_size=50), st.integers(0, 100))
def test_damage_is_of_all_kinds(content: bytes, seed: int):
    changed = damaged(content, random.Random(seed))
    assert changed == damaged(content, random.Random(seed))
    assert len(changed) <= len(content) + 4096


@pytest.mark.slow
def test_a_full_disk_leaves_the_old_file_as_it_was(tmp_path: Path):
    """Lightning's own way destroys it: it copies from $TMPDIR over it."""
    if not can_mount():
        pytest.skip("no disk can be mounted here: `unshare -m` or `unshare -rm` is not permitted")
    result = save_on_full_disk(tmp_path)
    assert result["names_bytes"]
    assert result["identical"]
    assert result["files"] == ["last.ckpt"]
    assert "No space left on device (6," in result["said"]
    assert result["saved_later"]
