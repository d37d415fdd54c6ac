"""Sharing a finished run on the Hugging Face Hub. This module decides which files of a run go where in a repository,
and that they arrive in one commit, so that nobody loads half of a push; what the cards say is left to `model_cards`.

    hictl publish runs/demo me/hictl-demo
    hictl publish runs/demo me/hictl-demo --license cc-by-4.0 --private true --encoder_repository me/hictl-demo-encoder
    hictl publish runs/de-en me/hictl-de-en

At the root of the repository are the model with its code, its tokenizer and its card, `results.json`, `report.html` and
`pictures/`; the plain encoder is in `encoder/`, or in a repository of its own. A push that failed is repeated: what has
arrived is not sent again. You need to be logged in (`hf auth login`), or HF_TOKEN to be set.
"""

import json
import logging
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from huggingface_hub import CommitOperationAdd, CommitOperationDelete, HfApi

from ..errors import BadInput
from ..reports.results import Results
from .cards import encoder_card, model_card, translation_card

logger = logging.getLogger(__name__)

Contents = dict[str, Path | bytes]  # by their paths in the repository
PICKLES = (".bin", ".pt", ".pth", ".pkl", ".pickle", ".ckpt")  # a file that is run when it is read
REPLACED = (  # what an earlier push may have left, and would be loaded or shown beside what is pushed now
    "*.safetensors", "*.safetensors.index.json", "encoder/*", "pictures/*", "2_Dense/*",
)  # fmt: skip
MESSAGE = "Publish a run of hictl_hf"


def push(
    run: str | Path,
    repository: str,
    *,
    encoder_repository: str | None = None,
    license: str | None = None,
    private: bool | None = None,
) -> str:
    """Push a run; each repository gets one commit, whole or not at all. Returns the address of the commit.

    Args:
        run: the output folder of a pre-training or translation run that has ended.
        repository: "your-name/model"; made where there is none.
        license: of the weights, which follows from the data and from what training began with; nobody else knows it.

    Raises:
        BadInput: the folder is no run, holds what must not be shared, or the Hub refuses.
    """
    run = Path(run)
    results = read_results(run) | {"license": license}
    where = {repository: contents_of(run, results, repository, encoder_repository)}
    encoder = contents_of_encoder(run, results, repository, encoder_repository)
    if encoder_repository is None:
        where[repository] |= {f"encoder/{name}": content for name, content in encoder.items()}
    elif encoder and encoder_repository != repository:
        where = {encoder_repository: encoder} | where  # first, as the card of the model names it
    else:
        raise BadInput(
            f"encoder_repository is {encoder_repository}; allowed is another repository than that of the model, for a "
            "pre-training run; leave it out"
        )
    address = ""
    for name, contents in where.items():
        reserve(name, private)
        with hub_errors(name, f"it can be repeated: hictl publish {run} {repository}"):
            address = commit(name, contents)
    return address


def reserve(repository: str, private: bool | None = None) -> None:
    """See to it that there is a repository which can be written to; a run asks before it trains."""
    with hub_errors(repository, "log in by `hf auth login`, check the name, which is your-name/model, and the network"):
        HfApi().create_repo(repository, private=private, exist_ok=True)


@contextmanager
def hub_errors(repository: str, fix: str) -> Iterator[None]:
    """Turns what the Hub and the way to it can raise, which is nearly anything, into one `BadInput`."""
    try:
        yield
    except Exception as error:
        found = f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
        raise BadInput(f"{repository}: nothing was committed to it ({found}); {fix}") from error


def commit(repository: str, contents: Mapping[str, Path | bytes]) -> str:
    """Make the repository hold these files, and of those that an earlier push left no others; the commit's address."""
    api = HfApi()
    there = api.list_repo_files(repository)
    left = [name for name in there if name not in contents and any(fnmatch(name, like) for like in REPLACED)]
    additions = [
        CommitOperationAdd(name, value if isinstance(value, bytes) else str(value)) for name, value in contents.items()
    ]
    deletions = [CommitOperationDelete(name) for name in left]
    done = api.create_commit(repository, [*additions, *deletions], commit_message=MESSAGE)
    return str(done.commit_url)


def contents_of(run: Path, results: Results, repository: str, encoder_repository: str | None) -> Contents:
    """What of a run is shared, but for the encoder."""
    contents: Contents = {name: run / name for name in ("results.json", "report.html") if (run / name).is_file()}
    contents |= files_of(run / "pictures", run, "pictures/")
    pictures = [name for name in contents if name.endswith(".png")]
    if (run / "checkpoint").is_dir():
        card = model_card(results, repository, encoder_repository, pictures)
        return contents | files_of(run / "checkpoint", run) | {"README.md": card.encode()}
    return contents | files_of(run / "model", run) | {"README.md": translation_card(results, repository).encode()}


def contents_of_encoder(run: Path, results: Results, repository: str, encoder_repository: str | None) -> Contents:
    """The plain encoder; of a translation run nothing."""
    files = files_of(run / "encoder", run)
    card = encoder_card(results, repository, encoder_repository)
    return files | {"README.md": card.encode()} if files else {}


def read_results(run: Path) -> dict[str, Any]:
    """What a run wrote last; BadInput where it has not ended, or is none."""
    kind = (
        "the output folder of a pre-training run (checkpoint/, encoder/) or a translation run (model/) that has ended"
    )
    models = [name for name in ("checkpoint", "model") if any((run / name).glob("*.safetensors"))]
    if len(models) != 1:
        raise BadInput(f"{run}: holds {' and '.join(models) or 'no model in safetensors'}; allowed is {kind}")
    try:
        return dict(json.loads((run / "results.json").read_text("utf-8")))
    except (OSError, ValueError, TypeError) as error:
        raise BadInput(f"{run}/results.json: cannot be read ({error}); allowed is {kind}") from error


def files_of(folder: Path, inside: Path, prefix: str = "") -> Contents:
    """The files of a folder; BadInput for a link that leads out of `inside`, and for a pickle."""
    found: Contents = {}
    for place, folders, files in os.walk(folder):
        for name in sorted(files + folders):
            path = Path(place, name)
            if path.is_symlink() and not path.resolve().is_relative_to(inside.resolve()):
                raise BadInput(
                    f"{path}: is a link to {path.resolve()}, which is not in {inside}; put a file in its place"
                )
            if path.suffix in PICKLES:
                raise BadInput(f"{path}: is a pickle, which runs what is in it; save the model in safetensors")
            if path.is_file():
                found[prefix + path.relative_to(folder).as_posix()] = path
    return found
