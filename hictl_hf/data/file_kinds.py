"""What a file is by its first bytes, whatever its name says: compressed, an archive, or another file without text."""

import tarfile

COMPRESSED = {  # ending of a file that is read -> program, first bytes
    ".gz": ("gzip", b"\x1f\x8b"),
    ".bz2": ("bzip2", b"BZh"),
    ".xz": ("xz", b"\xfd7zXZ\x00"),
    ".zst": ("zstd", b"\x28\xb5\x2f\xfd"),
}
SKIPPABLE = b"\x50\x2a\x4d\x18"  # the first bytes of files by pzstd
KINDS = {  # first bytes -> what the file is, and what to do
    magic: (f"compressed with {program}", f"Rename it: it has to end in {ending}")
    for ending, (program, magic) in COMPRESSED.items()
} | {
    b"\x5d\x00\x00": ("compressed with lzma", "Decompress it: unlzma"),
    b"\x04\x22\x4d\x18": ("compressed with lz4", "Decompress it: lz4 -d"),
    b"\x1f\x9d": ("compressed with compress", "Decompress it: uncompress"),
    b"LZIP": ("compressed with lzip", "Decompress it: lzip -d"),
    b"PK\x03\x04": ("a zip archive (as .docx and .xlsx are)", "Name it with the ending .zip, or unpack it: unzip"),
    b"PK\x05\x06": ("an empty zip archive", "Download it again"),
    b"7z\xbc\xaf\x27\x1c": ("a 7z archive", "Unpack it: 7z x"),
    b"Rar!\x1a\x07": ("a rar archive", "Unpack it: unrar x"),
    b"PAR1": ("a Parquet file", "Name it with the ending .parquet"),
    b"ARROW1": ("an Arrow file", "Write it as Parquet"),
    b"%PDF-": ("a PDF file", "Extract its text: pdftotext"),
    b"SQLite format 3\x00": ("an SQLite database", "Export its table as CSV"),
}
LONGEST = 512  # bytes; the header of a tar archive


def kind_of(head: bytes) -> tuple[str, str] | None:
    """Return what the first 512 bytes of a file show it to be, and what to do; `None` for text and unknown files.

    >>> kind_of(b"BZh91AY&SY"), kind_of(b"BZh is a word")
    (('compressed with bzip2', 'Rename it: it has to end in .bz2'), None)
    """
    for magic, kind in KINDS.items():
        if head.startswith(magic) and not (magic == b"BZh" and head[4:7] != b"1AY"):
            return kind
    return ("a tar archive", "Unpack it: tar -xf") if is_tar(head) else None


def is_tar(head: bytes) -> bool:
    """Whether these bytes are the header of a tar archive, whose sum it contains."""
    try:
        return tarfile.TarInfo.frombuf(head[:LONGEST], "utf-8", "surrogateescape") is not None
    except tarfile.HeaderError:
        return False
