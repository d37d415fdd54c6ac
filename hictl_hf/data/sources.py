"""Find the files or streams that the name of a source stands for, and read their rows in order.

`formats` parses files, `cleaning` filters rows.
"""

import glob
import importlib.util
import logging
import os
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial

from ..errors import BadInput, as_bad_input, nearest_name
from ..files import with_home
from .archives import archive_corpora
from .catalogues import read_catalogue
from .compression import compression_of, listed, with_compressions
from .formats import (
    FORMATS,
    check_moses,
    compare_lengths,
    ending_of,
    in_braces,
    read_hub,
    read_hub_column,
    read_json_lines,
    read_moses,
    read_parquet,
    read_plain_text,
    read_table,
)
from .language_names import has_role
from .languages import LANGUAGE
from .lines import check_kind
from .pair_lists import PAIR_LISTS, Layout, read_columns, read_pair_list, read_tatoeba, tatoeba_files
from .records import Cursor, Records, Row, SkipCounter, rows_of_record

logger = logging.getLogger(__name__)

MOSES = re.compile(r"(?P<before>.*)\{(?P<languages>[^{}]*,[^{}]*)\}(?P<after>[^{}]*)")
CATALOGUES = (".mo", ".po")
ARCHIVE = ".zip"
# Of rows whose columns need not be languages, if the source names these.
WITH_NAMES: Mapping[str, Callable[[str, Cursor], Records]] = {
    **dict.fromkeys(with_compressions(".jsonl", ".json"), read_json_lines),
    **dict.fromkeys(with_compressions(".csv"), partial(read_table, any_columns=True)),
    ".parquet": partial(read_parquet, any_columns=True),
}
OF_TRAIN = {"train", "training"}
SPLIT = re.compile(r"(?<![a-z])(train(?:ing)?|dev|devel|valid(?:ation)?|val|test|eval)(?![a-z])", re.IGNORECASE)
MAY_BE_EMPTY = (*CATALOGUES, ".xlf", ".xliff", ".sdlxliff")  # a header and no entry
OTHER_NAMES = (
    "plain text is named with its language as sw:file.txt or sw:folder, pairs as en+de:file.txt, Moses files together "
    "as 'corpus.{en,de}', with these quotes"
)
ONE_LANGUAGE = re.compile(rf"(?P<language>{LANGUAGE.pattern}):(?P<source>.+)")
TWO_FILES = re.compile(rf"{LANGUAGE.pattern}:.+\+{LANGUAGE.pattern}:.+")
SIDE = re.compile(rf"\+(?P<language>{LANGUAGE.pattern}):(?P<path>.+?)(?=$|\+{LANGUAGE.pattern}:)")  # may have a "+"
COLUMNS = re.compile(r"(?P<columns>[^:/]+\+[^:/]+):(?P<source>.+)")
NEXT_SIDE = re.compile(r"\+(?=[^\W\d_]+:)")  # the plus of en:PATH+swahili:PATH
KINDS = ("package", "tatoeba")  # of sources, before a colon
TATOEBA = re.compile(r"tatoeba:(?P<languages>[^:/]+):(?P<folder>.+)")


@dataclass(frozen=True)
class Shard:
    """A unit of reading: a file, the files of a Moses corpus, or a Hub dataset."""

    name: str
    """Its name in messages."""
    read: Callable[[Cursor], Records]
    sizes: Mapping[str, int]
    """Bytes of each file; empty for a Hub dataset."""
    aligned: Collection[str] = ()
    """Line-aligned files, or members of an archive, whose lengths have to be equal."""

    @property
    def is_catalogue(self) -> bool:
        """Whether it is a gettext catalogue."""
        return self.name.lower().endswith(CATALOGUES)


def read_rows(source: str | os.PathLike[str], report: SkipCounter, languages: Sequence[str] = ()) -> Iterator[Row]:
    """Yield the rows of a source in order; a record in more than two languages pairs the first, of these if there is
    one, with each other one."""
    for shard in list_shards(source):
        compare_lengths(shard.aligned)
        for rows in read_shard(shard, Cursor(), report, languages):
            yield from rows


def read_shard(shard: Shard, cursor: Cursor, report: SkipCounter, languages: Sequence[str] = ()) -> Iterator[list[Row]]:
    """Yield the rows of each record from the cursor on (an empty list for a skipped one) and advance the cursor.

    Reading seeks to the byte offset in text files and to the row group in Parquet; compressed files are decompressed,
    Hub datasets, catalogues, TMX and XLIFF are read from their beginning.
    """
    empty = cursor == Cursor() and not shard.name.lower().endswith(MAY_BE_EMPTY)
    for number, record in shard.read(cursor):
        empty = False
        yield rows_of_record(record, f"{shard.name}:{number}", report, shard.is_catalogue, languages)
    if empty:
        raise BadInput(f"{shard.name}: holds no rows; allowed is one or more. Fill it or leave it out.")


def list_shards(source: str | os.PathLike[str]) -> Iterator[Shard]:
    """Yield the shards of a source in order of names, without opening them; only of a zip archive the list is read."""
    source = with_home(os.fspath(source))
    refuse_names_of_languages(source)
    named = None if TWO_FILES.fullmatch(source) else ONE_LANGUAGE.fullmatch(source)
    if named and has_role(named["language"]):
        raise BadInput(
            f"{source}: has the language '{named['language']}', the name of a side or file; allowed are codes such as "
            f"en, pt-BR or zh_Hans. Write en:{named['source']} with the code of its language; of a language called so "
            "write the script, too: src-Latn."
        )
    if source.startswith("hub:"):
        yield Shard(source, partial(read_hub, source), {})
    elif named and named["source"].startswith("hub:"):
        yield Shard(source, partial(read_hub_column, named["source"], named["language"]), {})
    elif source.startswith("package:"):
        yield from list_files(package_folder(source.removeprefix("package:")), {".mo": FORMATS[".mo"]})
    elif tatoeba := TATOEBA.fullmatch(source):
        languages = Layout.parse(tatoeba["languages"], source).columns
        paths = [path for kind in tatoeba_files(tatoeba["folder"]) for path in kind]
        sizes = {path: os.path.getsize(path) for path in paths}
        yield Shard(source, partial(read_tatoeba, tatoeba["folder"], languages), sizes)
    elif columns := COLUMNS.fullmatch(source):
        layout = Layout.parse(columns["columns"], source)
        if columns["source"].startswith("hub:"):
            yield Shard(source, partial(read_columns, columns["source"], read=read_hub, layout=layout), {})
        else:
            formats = dict.fromkeys(PAIR_LISTS, partial(read_pair_list, layout=layout))
            others = {ending: partial(read_columns, read=read, layout=layout) for ending, read in WITH_NAMES.items()}
            yield from with_names_of_first(list_files(columns["source"], formats | others))
    elif TWO_FILES.fullmatch(source):
        sides = [(side["language"], side["path"]) for side in SIDE.finditer(f"+{source}")]
        names = [name for name, _ in sides]
        if twice := [name for name in names if names.count(name) > 1]:
            raise BadInput(f"{source}: names the language {twice[0]} twice; allowed is each once. Correct the codes.")
        yield line_aligned(source, dict(sides))
    elif named:
        read = partial(read_plain_text, language=named["language"])
        yield from list_files(named["source"], dict.fromkeys(with_compressions(".txt"), read))
    elif moses := MOSES.fullmatch(source):
        languages = [language.strip() for language in moses["languages"].split(",")]
        yield line_aligned(source, {name: moses["before"] + name + moses["after"] for name in languages})
    else:
        yield from list_files(source, FORMATS, archives=True)


def with_names_of_first(shards: Iterable[Shard]) -> Iterator[Shard]:
    """Yield the shards, those whose columns have names with the order of the first one's."""
    first: Callable[[Cursor], Records] | None = None
    for shard in shards:
        if (ending := ending_of(shard.name)) in WITH_NAMES:
            read: Callable[..., Records] = shard.read
            shard = replace(shard, read=partial(read, like=first))
            first = first or partial(WITH_NAMES[ending], shard.name)
        yield shard


def refuse_names_of_languages(source: str) -> None:
    """Raise `BadInput` for files after the name of a language in place of its code, such as swahili:file.txt."""
    sides = [side.partition(":") for side in NEXT_SIDE.split(source)]
    wrong = [name for name, _, _ in sides if name.isalpha() and len(name) > 3 and name not in KINDS]
    if wrong and all(os.path.exists(path) for _, _, path in sides) and not os.path.exists(source):
        raise BadInput(
            f"{source}: has the language {wrong[0]!r}; allowed are codes such as en, pt-BR or zh_Hans. Write its code."
        )


def line_aligned(source: str, paths: Mapping[str, str]) -> Shard:
    """Return the shard of line-aligned files, one for each language."""
    check_moses(paths)
    sizes = {path: os.path.getsize(path) for path in paths.values()}
    return Shard(source, partial(read_moses, paths), sizes, [*paths.values()])


def check_unchanged(shard: Shard) -> None:
    """Raise `BadInput` if a file of the shard is gone or has another size than when it was listed."""
    for path, size in shard.sizes.items():
        with as_bad_input(path, "a file that stays as it was when the run began", "Put it back."):
            found = os.path.getsize(path)
        if found != size:
            raise BadInput(
                f"{path}: has {found} bytes, but had {size} when the run began; allowed is a file that stays as it is. "
                "Put it back, or begin a new run."
            )


def package_folder(package: str) -> str:
    """Return the folder of an installed package, without importing it."""
    specification = importlib.util.find_spec(package) if package.isidentifier() else None
    if specification is None or not specification.submodule_search_locations:
        raise BadInput(
            f"package:{package}: no such package is installed; allowed are packages with message catalogues. Install "
            "it, and write the name it is imported by (package:rest_framework, not djangorestframework)."
        )
    return str(specification.submodule_search_locations[0])  # transformers has a Path


def list_files(
    source: str, formats: Mapping[str, Callable[[str, Cursor], Records]], archives: bool = False
) -> Iterator[Shard]:
    """Yield a shard for each file that a path, folder or pattern stands for, and for each corpus of a zip archive, if
    archives are allowed; `BadInput` for an unknown ending.

    Of several catalogues one that cannot be read is a broken row, not a broken source.
    """
    endings = [*formats, ARCHIVE] if archives else formats
    paths = find_files(source, endings)
    for path in paths:
        if (ending := ending_of(path)) not in endings:
            if ending in FORMATS:
                fix = f"Write {path} alone: such a file names its languages itself"
                if ending in WITH_NAMES:
                    fix += f". If it has only a column 'text', write sw:hub:{os.path.dirname(os.path.abspath(path))}"
                    fix += ", with the code of its language"
            else:
                check_kind(path)
                together = in_braces(path)
                fix = (
                    f"Moses files are named together: {together}"
                    if together
                    else f"Rename or convert it; {OTHER_NAMES}"
                )
            raise BadInput(f"{path}: has the ending '{ending}'; allowed here are {listed(endings)}. {fix}.")
        size, is_one_of_many = os.path.getsize(path), ending in CATALOGUES and len(paths) > 1
        if size == 0 and not is_one_of_many:
            raise BadInput(f"{path}: is empty; allowed is one row or more. Fill it or leave it out.")
        if ending == ARCHIVE:
            corpora = [Shard(name, read, {path: size}, aligned) for name, read, aligned in archive_corpora(path)]
            if others := files_of_other_splits([corpus.name for corpus in corpora]):
                log_other_splits(path, *others)
            yield from corpora
            continue
        read = partial(formats[ending], path)
        if is_one_of_many:
            read = partial(read_catalogue, path, strict=False)
        yield Shard(path, read, {path: size})


def refuse_saved_dataset(folder: str) -> None:
    """Raise `BadInput` for a folder of `datasets.save_to_disk`: its rows are in Arrow files, and its JSON has none."""
    names = ("dataset_dict.json", "state.json", "dataset_info.json")
    several, *one = (os.path.isfile(os.path.join(folder, name)) for name in names)
    if several or all(one):
        split = "['train']" * several
        raise BadInput(
            f"{folder}: was written by datasets.save_to_disk, in Arrow files; allowed is Parquet. Write it: "
            f"datasets.load_from_disk(folder){split}.to_parquet(file)."
        )


def find_files(source: str, endings: Collection[str]) -> list[str]:
    """Return the file itself, all readable files under a folder, or all files that a pattern matches, sorted."""
    if os.path.isfile(source):
        return [source]
    is_folder, is_pattern = os.path.isdir(source), glob.has_magic(source)
    pattern = os.path.join(glob.escape(source), "**") if is_folder else source
    paths = sorted(filter(os.path.isfile, glob.glob(pattern, recursive=True)))
    if is_folder:
        for folder in sorted({source, *map(os.path.dirname, paths)}):
            refuse_saved_dataset(folder)
        unread = [path for path in paths if ending_of(path) not in endings]
        paths = [path for path in paths if ending_of(path) in endings]
        if unread and len(endings) > 1:  # of a package all but its catalogues is code
            logger.info("%s: not read: %d files with other endings, such as %s", source, len(unread), unread[0])
    paths = without_links(paths)
    there = {*paths}
    if twice := [path for path in paths if (ending := compression_of(path)) and path[: -len(ending)] in there]:
        log_copies(source, *twice)
    if others := files_of_other_splits(paths):
        log_other_splits(source, *others)
    if not paths:
        found = "has no file we can read" if is_folder else "matches no file" if is_pattern else "does not exist"
        raise BadInput(
            f"{source}: {found}; allowed here are {listed(endings)}. {nearest_name(source)}Check the path; "
            f"{OTHER_NAMES}, a Hub dataset as hub:name:config:split."
        )
    return paths


def without_links(paths: Sequence[str]) -> list[str]:
    """Return each file once, sorted: a folder may link to a file in it, or to itself, which `glob` follows 40 times."""
    places = {path: os.path.realpath(path) for path in paths}
    first = {places[path]: path for path in sorted(paths, reverse=True)}
    first |= {place: path for path, place in places.items() if os.path.abspath(path) == place}  # its own name
    return sorted(first.values())


def files_of_other_splits(paths: Sequence[str]) -> list[str]:
    """Return the files that are of dev or test by their names, next to others of train; none if there are no others.

    >>> files_of_other_splits(["/test/a/train-0.parquet", "/test/a/test-0.parquet", "/test/a/latest.parquet"])
    ['/test/a/test-0.parquet']
    """
    if len(paths) < 2:
        return []
    begin = len(os.path.commonpath(paths))
    splits = {path: {*map(str.lower, SPLIT.findall(path[begin:]))} for path in paths}
    trained = {path for path, names in splits.items() if names & OF_TRAIN}
    return [path for path, names in splits.items() if names - OF_TRAIN and path not in trained] if trained else []


@cache
def log_copies(source: str, first: str, *others: str) -> None:
    """Log once that a source has files both compressed and not, of the same names."""
    logger.warning(
        "%s: %d of its files are there without compression, too, such as %s, and both are read; remove one if they are "
        "the same", source, 1 + len(others), first,
    )  # fmt: skip


@cache
def log_other_splits(source: str, first: str, *others: str) -> None:
    """Log once that a source has files of dev or test, too."""
    logger.warning(
        "%s: %d of its files are of another split than train by their names, such as %s, and are read, too; name the "
        "files of train, unpacked from an archive, or the folder of a data set as hub:FOLDER",
        source, 1 + len(others), first,
    )  # fmt: skip
