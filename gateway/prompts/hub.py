"""Tokenizer and templates of a model on the Hugging Face hub, through `huggingface_hub`, where it is installed.

That library reads its own environment variables: HF_HUB_OFFLINE, HF_TOKEN, HF_ENDPOINT, HF_HOME.
"""

from __future__ import annotations

from pathlib import Path

from warmroute.model_files import MODEL_FILES, TEMPLATE_FOLDER, TOKENIZER_FILE


class HubError(Exception):
    """The hub's files cannot be fetched. The message says why, and what to do instead."""


def hub_folder(name: str) -> Path:
    """The folder with the files of `org/name` or `org/name@revision`, fetched where the cache lacks them. Blocks.

    Raises HubError.
    """
    repository, _, revision = name.partition("@")
    remedy = "give the folder in model_path, or leave both out to take the files that the pool's workers offer"
    try:
        from huggingface_hub import snapshot_download
    except ImportError as error:
        raise HubError(f"tokenizer: {name} needs the package huggingface_hub: install it, {remedy}") from error
    try:
        folder = Path(
            snapshot_download(
                repository,
                revision=revision or None,
                allow_patterns=[*MODEL_FILES, f"{TEMPLATE_FOLDER}/*.jinja"],
            )
        )
    except Exception as error:  # the library, its HTTP client and the disk raise many kinds
        first_line = (str(error) or type(error).__name__).strip().splitlines()[0]
        raise HubError(f"tokenizer: {name} cannot be fetched from the hub: {first_line}: {remedy}") from error
    if not (folder / TOKENIZER_FILE).is_file():
        raise HubError(f"tokenizer: {name} has no {TOKENIZER_FILE}: {remedy}")
    return folder
