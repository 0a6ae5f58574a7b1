"""Upload exported models to the Hugging Face Hub."""

import json
import re
from pathlib import Path

from t5x_lite.errors import IO_ERROR, USAGE, UserError, optional_import, user_errors
from t5x_lite.progress import say
from t5x_lite.version import VERSION

_NAME = r"[A-Za-z0-9][\w.-]*"


def check_repository(repository: str) -> None:
    """Reject an invalid repository name, or a missing package, before anything is written."""
    if not re.fullmatch(f"{_NAME}/{_NAME}", repository):
        expected = "expected USER/NAME, or ORGANISATION/NAME"
        raise UserError(USAGE, f"export: --push: got {repository!r}, {expected}")
    optional_import("huggingface_hub", "hf", "export: --push")


def check_card(directory: Path, repository: str, license_name: str) -> None:
    """Reject the card of an earlier export if it lacks the given licence, or does not name the
    repository.

    Raises:
        UserError: names what to change in the card.
    """
    path = directory / "README.md"
    card = path.read_text() if path.is_file() else ""
    line = f"license: {json.dumps(license_name)}"
    if license_name and line not in card:
        reason = f"it has no line {line}"
    elif repository and repository not in card:
        reason = f"it does not name {repository}"
    else:
        return
    fix = "edit it, or remove the directory and export again"
    raise UserError(USAGE, f"export: {path}: {reason}; {fix}")


def upload(directory: Path, repository: str, revision: str = "") -> None:
    """Upload the files of a directory. The Hub's own settings say where the Hub is, and who you are
    (HF_ENDPOINT, HF_TOKEN, or `hf auth login`).

    Args:
        repository: USER/NAME; created as a private repository if it does not exist.
        revision: the branch to write; empty: the main one.

    Raises:
        UserError: if it cannot be uploaded.
    """
    hub = optional_import("huggingface_hub", "hf", "export: --push")
    optional_import("huggingface_hub.utils", "hf", "export: --push").disable_progress_bars()
    failed = f"{repository}: cannot be uploaded; the export is in {directory}"
    with user_errors(IO_ERROR, failed):
        api = hub.HfApi()
        api.create_repo(repository, private=True, exist_ok=True)
        if revision:
            api.create_branch(repository, branch=revision, exist_ok=True)
        api.upload_folder(
            repo_id=repository,
            folder_path=directory,
            revision=revision or None,
            commit_message=f"Export of t5x_lite {VERSION}",
        )
    say(f"uploaded: {repository}{revision and f', revision {revision}'}")
