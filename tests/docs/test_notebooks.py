"""The notebooks of examples/ are kept without outputs, are valid, and run in a kernel."""

from __future__ import annotations

import json
import re
from pathlib import Path

import nbformat
import pytest
from helpers.training_runs import environment_for_subprocess, processes_of
from helpers.waiting import wait_for

NOTEBOOKS = sorted((Path(__file__).parents[2] / "examples/notebooks").glob("*.ipynb"))
FEWER_STEPS = "max_steps = 100"


def test_there_is_one_for_each_way_of_acting():
    names = [path.stem for path in NOTEBOOKS]
    assert names == ["cartpole_actors", "cartpole_synchronous"]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_is_valid_and_kept_without_outputs(path: Path):
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert all(not cell.outputs and cell.execution_count is None for cell in cells)
    assert 'LRL = ""' in cells[0].source  # which installs lrl where it is not
    assert json.dumps(notebook.cells).count("max_steps = 5000") == 1


@pytest.mark.slow
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs_from_its_first_cell_to_its_last(tmp_path, monkeypatch, path: Path):
    from nbclient import NotebookClient

    for name, value in environment_for_subprocess().items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("NOTEBOOK_IN", str(tmp_path))
    notebook = nbformat.read(path, as_version=4)
    for cell in notebook.cells:
        cell.source = re.sub(r"max_steps = 5000", FEWER_STEPS, cell.source)
    resources = {"metadata": {"path": str(tmp_path)}}
    NotebookClient(notebook, timeout=280, resources=resources).execute()
    wait_for(lambda: processes_of(f"NOTEBOOK_IN={tmp_path}") == [], "the end of all", 20.0)
    (tmp_path / "executed.ipynb").write_text(nbformat.writes(notebook))
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    text = "".join(output.text for output in outputs if output.output_type == "stream")
    assert re.search(r"mean return of 100 episodes: \d+\.\d", text)
    shown = {kind for output in outputs if "data" in output for kind in output.data}
    assert "image/png" in shown  # the curve
    if path.stem == "cartpole_actors":
        assert "image/gif" in shown
    else:
        assert len(re.findall(r"episode \d: return \d+", text)) == 3
