from __future__ import annotations

import sys

import pytest

from benchmark.parts.saving import main


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_benchmark_prints_a_table(capsys, tmp_path):
    arguments = ["--rows", "1280", "--new_rows", "640", "--frame_side", "8"]
    main([*arguments, "--sampler", "rank", "--folder", str(tmp_path)])
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    figures = {name: float(value.replace(",", "")) for name, value in lines}
    assert len(figures) == 11
    assert figures["megabytes_on_disk"] > 1280 * (64 + 9) / 1e6
    assert list(tmp_path.iterdir()) == []
