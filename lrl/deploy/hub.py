"""The Hugging Face Hub (extra `hub`): addresses of agents there, and what may go wrong."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

from lrl.types import ConfigError, first_line

ADDRESS = "hub:"
"""How the address of an agent begins: `hub:owner/name`, or `hub:owner/name@revision`."""
CHECKPOINT = "agent.ckpt"
"""Name of the checkpoint in a repository."""


def import_hub() -> Any:
    """Return the client package.

    Raises:
        ConfigError: It is not installed.
    """
    try:
        return import_module("huggingface_hub")
    except ImportError as error:
        raise ConfigError("the hub needs an extra: pip install 'lrl[hub]'") from error


def fetched(path: str | Path) -> str | Path:
    """Return a path as it is; of an address the checkpoint of that repository, downloaded once.

    Nothing else is read of the repository, and the file is then loaded like any other.

    Args:
        path: A path, or `hub:owner/name` with `@revision` (branch, tag or commit) if need be.

    Raises:
        ConfigError: The extra `hub` is not installed, the hub cannot be reached, or there is no
            such repository, revision or checkpoint.
    """
    if not str(path).startswith(ADDRESS):
        return path
    repo_id, _, revision = str(path).removeprefix(ADDRESS).partition("@")
    with blamed(repo_id, revision):
        return import_hub().HfApi().hf_hub_download(repo_id, CHECKPOINT, revision=revision or None)


@contextlib.contextmanager
def blamed(repo_id: str, revision: str = "") -> Iterator[None]:
    """Turn what the client raises into a `ConfigError` of one sentence."""
    import_hub()
    errors = import_module("huggingface_hub.errors")
    try:
        yield
    except errors.HFValidationError as error:
        raise ConfigError(
            f"{repo_id!r} is no name of a repository on the hub: give owner/name"
        ) from error
    except errors.RepositoryNotFoundError as error:
        raise ConfigError(
            f"there is no repository {repo_id!r} on the hub that you may see: check its name, and "
            f"if it is private, {_LOG_IN}"
        ) from error
    except errors.RevisionNotFoundError as error:
        raise ConfigError(f"repository {repo_id!r} has no revision {revision!r}") from error
    except errors.RemoteEntryNotFoundError as error:
        raise ConfigError(
            f"repository {repo_id!r} has no file {CHECKPOINT}: it was not written by lrl push"
        ) from error
    except errors.HfHubHTTPError as error:
        status = error.response.status_code
        why = f"({status}); {_LOG_IN}" if status in (401, 403) else f"({first_line(error)})"
        raise ConfigError(f"the hub refuses this for repository {repo_id!r} {why}") from error
    except (errors.HTTPError, OSError) as error:
        raise ConfigError(
            f"the hub cannot be reached for repository {repo_id!r}, nor is what is asked for on "
            f"this machine: {first_line(error)}"
        ) from error


def check_logged_in() -> None:
    """Check that there is a token to write with.

    Raises:
        ConfigError: There is none.
    """
    if import_hub().get_token() is None:
        raise ConfigError(f"there is no token to write to the hub with: {_LOG_IN}")


_LOG_IN = "log in (hf auth login) or set HF_TOKEN"
