"""`lrl push`: an agent on the Hugging Face Hub, with a card made from its checkpoint."""

from __future__ import annotations

import json
import shutil
import tempfile
from importlib import import_module
from pathlib import Path
from typing import Any

from lrl.deploy.card import model_card, score_of
from lrl.deploy.hub import ADDRESS, CHECKPOINT, blamed, check_logged_in, import_hub
from lrl.report.contents import contents
from lrl.types import ConfigError

_OF_EARLIER_PUSHES = ["config.yaml", "scores.json", "replay.mp4", "replay.gif", "replay.png"]
"""What is of the agent that was there before, unless this push brings it anew."""


def push(
    ckpt_path: str,
    repo_id: str,
    private: bool = False,
    revision: str | None = None,
    film: str | None = None,
    score: str | None = None,
    output: str | None = None,
) -> None:
    """Push an agent to the Hugging Face Hub: checkpoint, model card, protocol stamp, settings.

    The checkpoint is the file as it is, so that others can go on from it; config.yaml is the run's,
    if it lies where the run left it. Look at all of it first with --output FOLDER, which needs no
    network. Needs the extra `hub` and a token (hf auth login, or HF_TOKEN).

    Args:
        ckpt_path: Checkpoint that lrl wrote.
        repo_id: Repository, owner/name; made if it is not there.
        private: Make the repository private.
        revision: Branch, made if it is not there; null is main.
        film: A film of `lrl play`, which the hub shows if it is an MP4.
        score: The JSON file of `lrl evaluate --out`; null states the evaluation in training of a
            best.ckpt, and of others none.
        output: New or empty folder to write all files to, instead of pushing.

    Raises:
        ConfigError: An argument is wrong, the checkpoint cannot be used, there is no token, or the
            hub refuses or cannot be reached.
    """
    hub = import_hub()
    with blamed(repo_id):
        import_module("huggingface_hub.utils").validate_repo_id(repo_id)
    if "/" not in repo_id:
        raise ConfigError(f"repo_id is {repo_id!r}, but must be owner/name")
    address = repo_id if revision is None else f"{repo_id}@{revision}"
    if output is not None:
        if private:
            raise ConfigError("private is true, but with --output nothing is pushed: leave it out")
        folder = Path(output)
        _write(folder, ckpt_path, address, film, score)
        print(f"written: {folder}")
        return
    check_logged_in()
    with tempfile.TemporaryDirectory() as folder:
        _write(Path(folder), ckpt_path, address, film, score)
        with blamed(repo_id, revision or ""):
            _upload(hub.HfApi(), Path(folder), repo_id, private, revision)
    print(f"pushed: {ADDRESS}{address}")


def _write(folder: Path, ckpt_path: str, address: str, film: str | None, score: str | None) -> None:
    """Write what a repository holds to an empty folder."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ConfigError(f"output {str(folder)!r} must be a new or an empty folder")
    found, path = contents(ckpt_path), Path(ckpt_path).resolve()
    known, copies = score_of(found, score), {CHECKPOINT: path}
    files = {CHECKPOINT: "the checkpoint", "stamp.json": "its protocol stamp"}
    config = path.parent.parent / "config.yaml"
    if path.parent.name == "checkpoints" and config.is_file():  # else it may be anybody's
        copies["config.yaml"] = config
        files["config.yaml"] = "all settings of the run (a configuration is code: read it first)"
    if score is not None:
        copies["scores.json"] = Path(score)
        files["scores.json"] = "statistics of `lrl evaluate`"
    if film is not None:
        if not Path(film).is_file():
            raise ConfigError(f"film {film!r}: there is no such file")
        name = f"replay{Path(film).suffix.lower()}"
        copies[name], files[name] = Path(film), "a film of `lrl play`"
    card = model_card(found, address, known, files)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, source in copies.items():
            shutil.copyfile(source, folder / name)
        if contents(folder / CHECKPOINT)["weights_sha256"] != found["weights_sha256"]:
            raise ConfigError(f"checkpoint {ckpt_path} was replaced by a newer one: push it again")
        (folder / "stamp.json").write_text(json.dumps(found["stamp"], indent=2) + "\n")
        (folder / "README.md").write_text(card)
    except OSError as error:
        raise ConfigError(f"{folder} cannot be written: {error}") from error


def _upload(api: Any, folder: Path, repo_id: str, private: bool, revision: str | None) -> None:
    api.create_repo(repo_id, private=private, exist_ok=True)
    if private and not api.model_info(repo_id).private:
        raise ConfigError(
            f"private is true, but repository {repo_id!r} is there already and public: change it "
            "on the hub, or give another name"
        )
    if revision is not None:
        api.create_branch(repo_id, branch=revision, exist_ok=True)
    api.upload_folder(
        repo_id=repo_id,
        folder_path=folder,
        revision=revision,
        commit_message="Push by lrl",
        delete_patterns=_OF_EARLIER_PUSHES,
    )
