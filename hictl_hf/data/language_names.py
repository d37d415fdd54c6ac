"""Which names of columns, keys and files name a language: other words have the form of a code, or are one."""

import re
from collections.abc import Collection
from functools import cache

from langcodes import Language

from .languages import is_code, language_code

# Sides of a pair, files and addresses: no language where one is named on purpose, either, as in `src:file.txt`.
ROLES = frozenset({"csv", "doc", "hyp", "md", "ref", "src", "tgt", "trg", "tsv", "txt", "uri", "url", "xml", "zip"})
# Names of columns that have the form of a code, and may even be one (`url` is Urali), but hold something else.
NOT_LANGUAGES = ROLES | {
    "aid", "aud", "avg", "bid", "bpe", "cer", "cid", "cls", "cmt", "cnt", "dev", "did", "dif", "dir", "dom", "dup",
    "eid", "ent", "err", "ext", "fid", "fk", "fmt", "gid", "hit", "idx", "job", "key", "lab", "lan", "lbl", "len",
    "lic", "lid", "lm", "lng", "loc", "lp", "map", "max", "md5", "met", "mod", "mtr", "nam", "neg", "nid", "nmt", "num",
    "obj", "oid", "old", "ord", "org", "out", "pct", "pe", "pic", "pid", "pk", "pos", "ppl", "qe", "qid", "raw", "rec",
    "rel", "res", "rev", "rid", "row", "seg", "sep", "seq", "set", "sha", "sid", "sim", "smt", "std", "sub", "sum",
    "sys", "tag", "ter", "tid", "tit", "tm", "tmp", "top", "tot", "ttl", "typ", "uid", "usr", "utc", "val", "ver",
    "vid", "wav", "wer", "wmt", "www",
}  # fmt: skip
NOT_ENDINGS = NOT_LANGUAGES | {"cat", "tok"}  # of a name such as en_tok; alone they are Catalan and Toki Pona
COLUMN = re.compile(r"([a-z]{2,3}|[A-Z]{2,3})(?![A-Za-z])")  # "Yes" is the first word of a text
# Languages, and numbers, categories or machine translations -> how else to write them.
DOUBTFUL = {"cat": "ca", "id": "ind", "min": "min-Latn", "mt": "mlt", "no": "nob", "nr": "nbl", "sn": "sna"}
DOUBTFUL_REGIONS = {"id", "md", "mt", "no", "nr", "pe", "pk", "tm"}  # also "identifier", "post-edited" and the like
ONLY_WITH_ITS_LANGUAGE = {"ID", "MT", "NO", "NR"}  # de-MT is a machine translation
OF_CORPORA = {  # codes of OPUS, Tatoeba and Wikipedia that are not assigned, or not so
    "bat-smg", "cb-iq", "cbk-zam", "cx-ph", "fiu-vro", "map-bms", "my-zaw", "ns-za", "qa-mm", "qd-mm", "roa-rup",
    "sz-pl", "tok", "tz-ma", "ze", "ze-en", "ze-zh", "zz-tr",
}  # fmt: skip
MACROLANGUAGES = {"ar", "kok", "lv", "ms", "sgn", "sw", "uz", "zh"}  # ar-arb, zh-yue


def not_languages(names: Collection[object], are_declared: bool = False) -> list[str]:
    """Return those names of columns, keys or files of one record that are no languages.

    Args:
        are_declared: Whether the user or the format says that they are languages, so a code need not be assigned.

    >>> not_languages(["en", "zh_Hans", "url", "de_score", "doc_id"]), not_languages(["en", "src_Latn"])
    (['url', 'de_score', 'doc_id'], [])
    """
    others = [name for name in names if not is_language(name, are_declared)]
    if len(names) > 2:
        others += [name for name in names if name not in others and has_doubtful_region(str(name))]
    return list(map(str, others))


def with_codes(names: Collection[str]) -> dict[str, str]:
    """Return a language for each name, for advice: itself, or the code of an example.

    >>> with_codes(["src", "de", "tgt"])
    {'src': 'en', 'de': 'de', 'tgt': 'fr'}
    """
    others = not_languages(names, are_declared=True)
    examples = (code for code in ("en", "de", "fr", "es", "ru", "zh", *["xx"] * len(names)) if code not in names)
    return {name: next(examples) if name in others else name for name in names}


def none_of_languages(names: Collection[str]) -> str:
    """Return the part of a message that says which names are no languages; "" if there are none.

    >>> none_of_languages(["src"]) + none_of_languages(["ID", "url"]) + none_of_languages([])
    ', of which src is no language, of which ID, url are no languages'
    """
    is_none = "are no languages" if len(names) > 1 else "is no language"
    return f", of which {', '.join(names)} {is_none}" if names else ""


@cache
def is_language(name: object, is_declared: bool = False) -> bool:
    """Whether a name is that of a language: a code without a word for something else, whose parts are assigned."""
    if not isinstance(name, str) or not is_code(name):
        return False
    tag = Language.get(language_code(name))
    first, *others = parts(name)
    if tag.script and tag.is_valid() or "-".join((first, *others)) in OF_CORPORA:  # min_Latn is no minimum
        return True
    if first in NOT_LANGUAGES or any(len(part) > 2 and part in NOT_ENDINGS for part in others):  # es_PE is a region
        return False
    if tag.extlangs and first not in MACROLANGUAGES and others != ["rom"]:  # hi_rom, of CC-100
        return False
    return is_declared or "@" in name or tag.is_valid()


def has_role(language: object) -> bool:
    """Whether a language named on purpose is that of a side or file: src, and not key, which is Kupia.

    >>> [has_role(language) for language in ("src", "url", "key", "src-Latn")]
    [True, True, False, False]
    """
    return isinstance(language, str) and parts(language)[0] in ROLES and not is_language(language)


@cache
def doubtful_part(name: str) -> str:
    """Return the part of a code that may mean something else, such as "mt" in de_mt; "" if there is none.

    >>> [doubtful_part(name) for name in ("no", "de_mt", "nb_NO", "es_PE", "doc_pe", "min_Latn")]
    ['no', 'mt', '', '', 'pe', '']
    """
    first, *others = parts(name)
    if not others:
        return first if first in DOUBTFUL else ""
    return others[-1] if has_doubtful_region(name) else ""


@cache
def has_doubtful_region(name: str) -> bool:
    """Whether a code ends in a region that also is a word, and neither its language is at home there, nor are the
    capitals those of a region."""
    first, *others = parts(name)
    if not others or others[-1] not in DOUBTFUL_REGIONS:
        return False
    region = others[-1].upper()
    as_written = re.split("[-_]", name)
    is_region = as_written[0].islower() and as_written[-1] == region and region not in ONLY_WITH_ITS_LANGUAGE
    return not is_region and Language.get(first).maximize().territory != region


def parts(name: str) -> list[str]:
    return re.split("[-_@]", name.lower())
