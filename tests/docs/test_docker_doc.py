"""The Dockerfile calls what the Makefile has, with the files that .dockerignore lets through."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DOCKERFILE = (ROOT / "Dockerfile").read_text()
PAGE = (ROOT / "docs/docker.md").read_text()


@pytest.fixture
def context(tmp_path) -> Path:
    """What is sent to Docker."""
    lines = (ROOT / ".dockerignore").read_text().splitlines()
    assert "*" in lines
    for name in [line[1:] for line in lines if line.startswith("!")]:
        path = ROOT / name
        copy = shutil.copytree if path.is_dir() else shutil.copy
        copy(path, tmp_path / name)
    return tmp_path


def planned(context: Path, target: str) -> list[str]:
    """Return the commands that make would run."""
    made = subprocess.run(
        ["make", "--no-print-directory", "--dry-run", target],
        cwd=context,
        capture_output=True,
        text=True,
        check=True,
    )
    return made.stdout.splitlines()


@pytest.mark.skipif(shutil.which("make") is None, reason="needs make")
def test_the_image_is_prepared_and_trains_by_the_makefile(context):
    (prepared,) = re.findall(r"^RUN make (\S+)$", DOCKERFILE, re.MULTILINE)
    (command,) = re.findall(r"^CMD (.+)$", DOCKERFILE, re.MULTILINE)
    make, target = json.loads(command)
    assert make == "make"
    before, whole = planned(context, prepared), planned(context, target)
    assert whole[: len(before)] == before  # so that nothing is installed when the container starts
    (rest,) = whole[len(before) :]
    config = re.fullmatch(r"\S+/lrl fit --config (\S+)", rest)
    assert config is not None
    assert (context / config[1]).is_file()


def test_whatever_the_package_is_built_from_is_in_the_image(context):
    settings = (ROOT / "pyproject.toml").read_text()
    readme = re.search(r'^readme = "(.+)"', settings, re.MULTILINE)
    (wheel,) = re.findall(r'^only-include = \["(\w+)", "(\w+)"\]', settings, re.MULTILINE)
    assert readme is not None
    assert all((context / name).exists() for name in (readme[1], "LICENSE", *wheel))


def test_the_page_runs_what_it_builds():
    commands = "".join(re.findall(r"```bash\n(.*?)```", PAGE, re.DOTALL)).splitlines()
    assert commands[0] == "docker build --tag lrl ."
    assert all(" lrl" in line for line in commands[1:])
    assert "WORKDIR /lrl\n" in DOCKERFILE
    mounted = set(re.findall(r'--volume "\$PWD/(\w+):(\S+)"', PAGE))
    assert mounted == {("runs", "/lrl/runs")}
    (user,) = re.findall(r"^USER (\d+)$", DOCKERFILE, re.MULTILINE)
    assert f"number {user}," in PAGE
