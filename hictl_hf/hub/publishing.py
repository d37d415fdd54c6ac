"""Publish a finished run on the Hugging Face Hub, in one commit, so that nobody can load an incomplete push.

At the root of the repository are the model with its code, its tokenizer and its card, `results.json`, `report.html` and
`pictures/`; the plain encoder is in `encoder/`, or in a separate repository. The cards are those that the run wrote,
completed by `cards`. Repeat a push that failed: files already uploaded are not sent again. Log in first by
`hf auth login`, or set HF_TOKEN.
"""

import json
import logging
import os
import shlex
from collections.abc import Container, Iterator, Mapping
from contextlib import contextmanager
from fnmatch import fnmatch
from pathlib import Path

from huggingface_hub import CommitOperationAdd, CommitOperationDelete, HfApi

from ..errors import BadInput, nearest_name
from ..files import readable
from ..reports.results import NO_RESULTS, RESULTS_FILE
from .cards import card_for_repository, encoder_card_for_repository

logger = logging.getLogger(__name__)

Contents = dict[str, Path | bytes]  # path in the repository -> file or content
PICKLES = (".bin", ".pt", ".pth", ".pkl", ".pickle", ".ckpt")  # loading one can run code
REPLACED = (  # of an earlier push: would be loaded or shown together with the new files
    "*.safetensors", "*.safetensors.index.json", "adapter_config.json", "encoder/*", "pictures/*", "modules.json",
    "sentence_bert_config.json", "config_sentence_transformers.json", "*_Pooling/*", "*_Dense/*", "*_Normalize/*",
)  # fmt: skip
LAST_CHECKPOINT = "last-checkpoint"  # as HF's Trainer names it
CHECKPOINTS = "*checkpoint*/*"  # that one and checkpoint-N/, pushed during training
ACCESS = "log in by `hf auth login`, check the name, which is your-name/model, and the network"
MESSAGE = "Publish a run of hictl_hf"


def push(
    run: str | Path,
    repository: str,
    *,
    encoder_repository: str | None = None,
    license: str | None = None,
    private: bool | None = None,
    dry_run: bool = False,
) -> str:
    """Push a run, with one commit for each repository; returns the URL of the last commit.

    Args:
        run: the output folder of a finished pre-training or translation run.
        repository: "your-name/model", or "model" of the account; created if it does not exist.
        encoder_repository: a separate repository for the plain encoder.
        license: of the weights, for the cards; it depends on the data and on the model that training began with.
        private: whether a new repository is private; `None`: the default of the account.
        dry_run: push nothing; returns what would be pushed, the files with their sizes and the cards.

    Raises:
        BadInput: the folder is not a finished run or holds files that must not be shared, or the push fails.
    """
    run = Path(run)
    repository, encoder_repository = with_owner(repository), encoder_repository and with_owner(encoder_repository)
    where = {repository: contents_of(run, repository, encoder_repository, license)}
    encoder = contents_of_encoder(run, repository, encoder_repository, license)
    if encoder_repository is None:
        where[repository] |= {f"encoder/{name}": content for name, content in encoder.items()}
    elif encoder and encoder_repository != repository:
        where = {encoder_repository: encoder} | where  # first, as the card of the model names it
    else:
        raise BadInput(
            f"encoder_repository is {encoder_repository}; allowed is another repository than that of the model, "
            "and only for a pre-training run; leave it out"
        )
    if dry_run:
        return "\n".join(described(name, contents) for name, contents in where.items())
    given = {"encoder_repository": encoder_repository, "license": license, "private": private}
    flags = [word for flag, value in given.items() if value is not None for word in (f"--{flag}", str(value))]
    repeat = f"it can be repeated: {shlex.join(['hictl', 'publish', str(run), repository, *flags])}"
    address = ""
    for name, contents in where.items():
        reserve(name, private)
        with hub_errors(name, "the push failed; all of it was committed or nothing", repeat):
            address = commit(name, contents)
    return address


def described(repository: str, contents: Mapping[str, Path | bytes]) -> str:
    """The files of a repository, each with its size, and the text of its cards."""
    sizes = {name: len(it) if isinstance(it, bytes) else it.stat().st_size for name, it in contents.items()}
    lines = [f"{repository}: {len(sizes)} files, {readable(sum(sizes.values()))}"]
    lines += [f"{readable(size):>10}  {name}" for name, size in sorted(sizes.items())]
    cards = {name: it.decode() for name, it in sorted(contents.items()) if isinstance(it, bytes)}
    return "\n".join([*lines, *(f"\n--- {name}\n{card}" for name, card in cards.items())])


def reserve(repository: str, private: bool | None = None) -> str:
    """Create the repository unless it exists, and return its name with the owner, by default the account; a run does
    this before training, to fail early."""
    repository = with_owner(repository)
    with hub_errors(repository, "nothing was committed to it", ACCESS):
        HfApi().create_repo(repository, private=private, exist_ok=True)
    return repository


def with_owner(repository: str) -> str:
    """Return the name of a repository with its owner: of a name alone the account, as for HF's Trainer."""
    if "/" in repository:
        return repository
    with hub_errors(repository, "has no owner, and the account is not known", ACCESS):
        return f"{HfApi().whoami()['name']}/{repository}"


@contextmanager
def hub_errors(repository: str, state: str, fix: str) -> Iterator[None]:
    """Turn any exception of the Hub client or the network into a `BadInput` with the fix.

    Args:
        state: what is in the repository; a commit may have been made though its answer was lost.
    """
    try:
        yield
    except Exception as error:
        uploading = isinstance(error, RuntimeError) and error.__cause__  # has the reason, which the error lacks
        errors = [error, uploading] if uploading else [error]
        found = ", ".join(f"{type(each).__name__}: {' '.join(str(each).split())[:300]}" for each in errors)
        raise BadInput(f"{repository}: {state} ({found}); {fix}") from error


def commit(repository: str, contents: Mapping[str, Path | bytes], message: str = MESSAGE) -> str:
    """Commit these files and delete the obsolete ones; returns the URL of the commit."""
    api = HfApi()
    obsolete = [name for name in api.list_repo_files(repository) if is_obsolete(name, contents)]
    additions = [
        CommitOperationAdd(name, value if isinstance(value, bytes) else str(value)) for name, value in contents.items()
    ]
    deletions = [CommitOperationDelete(name) for name in obsolete]
    done = api.create_commit(repository, [*additions, *deletions], commit_message=message)
    return str(done.commit_url)


def is_obsolete(name: str, contents: Container[str]) -> bool:
    """Whether a file of an earlier push has to go: of `REPLACED`, but not of checkpoints pushed during training, or of
    the last checkpoint where that is pushed again."""
    if name in contents:
        return False
    if fnmatch(name, CHECKPOINTS):
        return name.startswith(f"{LAST_CHECKPOINT}/") and f"{LAST_CHECKPOINT}/config.json" in contents
    return any(fnmatch(name, pattern) for pattern in REPLACED)


def contents_of(run: Path, repository: str, encoder_repository: str | None, license: str | None) -> Contents:
    """The published files of a run, without those of its plain encoder."""
    model = model_folder(run)
    contents: Contents = {name: run / name for name in (RESULTS_FILE, "report.html") if (run / name).is_file()}
    contents |= files_of(run / "pictures", run, "pictures/")
    pictures = [name for name in contents if name.endswith(".png")]
    card = card_for_repository(
        model / "README.md", repository, encoder_repository=encoder_repository, license=license, pictures=pictures
    )
    return contents | files_of(model, run) | {"README.md": card}


def contents_of_encoder(run: Path, repository: str, encoder_repository: str | None, license: str | None) -> Contents:
    """The files of the plain encoder; empty for a translation run."""
    files = files_of(run / "encoder", run)
    if not files:
        return {}
    readme = run / "encoder" / "README.md"
    card = encoder_card_for_repository(readme, repository, encoder_repository=encoder_repository, license=license)
    return files | {"README.md": card}


def model_folder(run: Path) -> Path:
    """The model's folder in a finished run: checkpoint/ (pre-training) or model/ (translation).

    Raises:
        BadInput: the folder has no model, or the run has not finished.
    """
    kind = "the output folder of a finished pre-training run (checkpoint/, encoder/) or translation run (model/)"
    models = [name for name in ("checkpoint", "model") if any((run / name).glob("*.safetensors"))]
    if len(models) != 1:
        found, fix = f"holds {' and '.join(models) or 'no model in safetensors'}", "" if models else NO_RESULTS
        if not run.exists():
            found, fix = "no such folder", f"{nearest_name(run)}{NO_RESULTS}"
        elif (run.parent / RESULTS_FILE).is_file():
            found, fix = "is a part of a run", f"Publish the run: {run.parent}"
        elif not models and any(run.glob("*.safetensors")):
            found, fix = "is a model, not a run", "A model alone is shared by `hf upload NAME FOLDER`"
        raise BadInput(f"{run}: {found}; allowed is {kind}. {fix}".strip())
    try:
        dict(json.loads((run / RESULTS_FILE).read_text("utf-8")))
    except (OSError, ValueError, TypeError) as error:
        raise BadInput(f"{run}/{RESULTS_FILE}: cannot be read ({error}); allowed is {kind}. {NO_RESULTS}") from error
    return run / models[0]


def files_of(folder: Path, inside: Path, prefix: str = "") -> Contents:
    """The files of a folder by their paths, without hidden ones and those in hidden folders, such as the draft of a
    process that was killed; `BadInput` for a pickle, and for a link to a file outside of `inside`."""
    found: Contents = {}
    for parent, folders, files in os.walk(folder):
        folders[:] = [name for name in folders if not name.startswith(".")]
        for name in sorted(files + folders):
            path = Path(parent, name)
            if path.is_symlink() and not path.resolve().is_relative_to(inside.resolve()):
                raise BadInput(f"{path}: is a link to {path.resolve()}, which is not in {inside}; replace it by a file")
            if path.suffix in PICKLES:
                raise BadInput(
                    f"{path}: is a pickle, which can run code when it is read; save the model in safetensors"
                )
            if path.is_file() and not name.startswith("."):
                found[prefix + path.relative_to(folder).as_posix()] = path
    return found
