"""Moses tokenization, for tokenized BLEU and the filters of the translation corpora: by Moses' tokenizer.perl if its
folder is given, else by sacremoses, which differs in a few of a hundred sentences. The signature names the program."""

import importlib.metadata
import re
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ..data.languages import is_code, main_part, standard_code
from ..errors import BadInput, short_repr

SCRIPT = "scripts/tokenizer/tokenizer.perl"
NO_SPACE = r"[^ \t\n\r\f\v]"  # no space for perl, which reads bytes
CANTONESE = "yue"  # the only code of three letters that Moses has
COMPOUND = re.compile(rf"({NO_SPACE})-({NO_SPACE})")


@dataclass(frozen=True)
class MosesTokenizer:
    """Tokenizer of one language: words separated by spaces, punctuation split off, XML's special characters escaped.

    >>> MosesTokenizer("en", lowercase=True).tokenize(["It's R&D, he said."])
    ['it &apos;s r &amp; d , he said .']
    """

    language: str
    """A region or script, as in pt-BR, has no effect in Moses; a code of three letters is read as that of two."""
    moses_dir: str | Path | None = None
    """A copy of github.com/moses-smt/mosesdecoder; sacremoses without it."""
    aggressive: bool = False
    """Split hyphens within words: well @-@ known (-a)."""
    split_compounds: bool = False
    """Split remaining hyphens: well ##AT##-##AT## known, like get_ende_bleu.sh; raises BLEU."""
    lowercase: bool = False
    """Like lowercase.perl, in all alphabets."""

    def __post_init__(self) -> None:
        for name in ("aggressive", "split_compounds", "lowercase"):
            if (value := getattr(self, name)) not in (True, False):
                raise BadInput(f"{name} of Moses' tokenizer is {value!r}; allowed is true or false")

    @property
    def code(self) -> str:
        """Moses' code of the language; a code that Moses does not know would be tokenized as English.

        >>> [MosesTokenizer(language).code for language in ("de", "deu_Latn", "fre", "yue", "pt-BR")]
        ['de', 'de', 'fr', 'yue', 'pt']
        """
        code = main_part(self.language)
        return main_part(standard_code(code)) if len(code) == 3 and code != CANTONESE and is_code(code) else code

    @property
    def signature(self) -> str:
        """The program, its version if it has one, and its flags."""
        program = "tokenizer.perl" if self.moses_dir else f"sacremoses {importlib.metadata.version('sacremoses')}"
        chosen = (("-a", self.aggressive), ("compounds", self.split_compounds), ("lc", self.lowercase))
        return " ".join([program, f"-l {self.code}", *(name for name, given in chosen if given)])

    def tokenize(self, lines: Sequence[str]) -> list[str]:
        """Tokenize lines, one result for each.

        Raises:
            BadInput: `moses_dir` has no tokenizer.perl, or perl cannot run it.
        """
        lines = [" ".join(line.split()) for line in lines]  # a line feed within a line would start another
        words = self._by_perl(lines) if self.moses_dir else self._by_sacremoses(lines)
        if self.lowercase:
            words = [line.lower() for line in words]
        return [COMPOUND.sub(r"\1 ##AT##-##AT## \2", line) for line in words] if self.split_compounds else words

    def _by_sacremoses(self, lines: list[str]) -> list[str]:
        import sacremoses

        tokenizer = sacremoses.MosesTokenizer(self.code)
        return [tokenizer.tokenize(line, aggressive_dash_splits=self.aggressive, return_str=True) for line in lines]

    def _by_perl(self, lines: list[str]) -> list[str]:
        script = Path(str(self.moses_dir)) / SCRIPT
        if not script.is_file():
            found = f"{self.moses_dir}: has no {SCRIPT}; allowed is a copy of github.com/moses-smt/mosesdecoder"
            raise BadInput(f"{found}. Correct --moses_dir, or leave it out to use sacremoses.")
        command = ["perl", str(script), "-q", "-l", self.code, *(["-a"] if self.aggressive else [])]
        text = "".join(f"{line}\n" for line in lines)
        try:
            done = subprocess.run(command, input=text, capture_output=True, check=True, encoding="utf-8")
        except (OSError, subprocess.CalledProcessError) as error:
            found = str(getattr(error, "stderr", None) or error).strip().split("\n")[-1]
            fix = "Install perl, or leave --moses_dir out to use sacremoses."
            raise BadInput(
                f"{script}: cannot be run ({short_repr(found)}); allowed is a script that perl runs. {fix}"
            ) from error
        words = done.stdout.split("\n")[:-1]
        if len(words) != len(lines):
            found = f"made {len(words)} lines of {len(lines)}; allowed is one of each"
            raise BadInput(f"{script}: {found}. Use Moses' own tokenizer.perl, unchanged.")
        return [line.strip() for line in words]
