"""What a file is by its first bytes, whatever its name says: compressed, an archive, or another file without text."""

import tarfile

COMPRESSED = {  # ending of a file that is read -> program, first bytes
    ".gz": ("gzip", b"\x1f\x8b"),
    ".bz2": ("bzip2", b"BZh"),
    ".xz": ("xz", b"\xfd7zXZ\x00"),
    ".zst": ("zstd", b"\x28\xb5\x2f\xfd"),
}
SKIPPABLE = tuple(bytes([first]) + b"\x2a\x4d\x18" for first in range(0x50, 0x60))  # .zst by pzstd and others
KINDS = {  # first bytes -> what the file is, and what to do
    magic: (f"compressed with {program}", f"Rename it: it has to end in {ending}")
    for ending, (program, magic) in COMPRESSED.items()
} | {
    b"\x5d\x00\x00": ("compressed with lzma", "Decompress it: unlzma"),
    b"\x04\x22\x4d\x18": ("compressed with lz4", "Decompress it: lz4 -d"),
    b"\x02\x21\x4c\x18": ("compressed with lz4", "Decompress it: lz4 -d"),  # its former format
    b"\x1f\x9d": ("compressed with compress", "Decompress it: uncompress"),
    b"LZIP": ("compressed with lzip", "Decompress it: lzip -d"),
    b"PK\x03\x04": ("a zip archive", "Name it with the ending .zip, or unpack it: unzip"),
    b"PK\x07\x08": ("a zip archive", "Name it with the ending .zip, or unpack it: unzip"),
    b"PK\x05\x06": ("an empty zip archive", "Download it again"),
    b"7z\xbc\xaf\x27\x1c": ("a 7z archive", "Unpack it: 7z x"),
    b"Rar!\x1a\x07": ("a rar archive", "Unpack it: unrar x"),
    b"PAR1": ("a Parquet file", "Name it with the ending .parquet"),
    b"ARROW1": ("an Arrow file", "Write it as Parquet"),
    b"\xff\xff\xff\xff": ("an Arrow stream", "Write it as Parquet"),
    b"Obj\x01": ("an Avro file", "Write it as Parquet"),
    b"\x93NUMPY": ("an array of NumPy", "Write its texts as lines"),
    b"\xd0\xcf\x11\xe0": ("an Office file (as .doc and .xls are)", "Export its table as CSV in UTF-8"),
    b"%PDF-": ("a PDF file", "Extract its text: pdftotext"),
    b"SQLite format 3\x00": ("an SQLite database", "Export its table as CSV"),
    b"version https://git-lfs.github.com/spec/": ("a pointer of Git LFS", "Fetch the file itself: git lfs pull"),
    b"/annex/objects/": ("a pointer of git-annex", "Fetch the file itself: git annex get"),
}
# Members of the zip archive, the last one of LibreOffice.
IN_OFFICE_FILES = (b"[Content_Types].xml", b"_rels/", b"docProps/", b"mimetypeapplication/vnd.")
LONGEST = 512  # bytes; the header of a tar archive


def kind_of(head: bytes) -> tuple[str, str] | None:
    """Return what the first 512 bytes of a file show it to be, and what to do; `None` for text and unknown files.

    >>> kind_of(b"BZh91AY&SY"), kind_of(b"BZh is a word")
    (('compressed with bzip2', 'Rename it: it has to end in .bz2'), None)
    """
    if head.startswith(b"PK") and any(map(head.__contains__, IN_OFFICE_FILES)):
        return "an Office file (as .docx and .xlsx are)", "Export its table as CSV in UTF-8"
    for magic, kind in KINDS.items():
        if head.startswith(magic) and not (magic == b"BZh" and head[4:7] != b"1AY"):
            return kind
    return ("a tar archive", "Unpack it: tar -xf") if is_tar(head) else None


def is_utf_16(line: bytes) -> bool:
    """Whether the first line of a file is UTF-16 or UTF-32: a byte order mark, or zeros mostly in every other place.

    >>> [is_utf_16("en,de".encode(name)) for name in ("utf-16", "utf-16-be", "utf-16-le", "utf-32-le", "utf-8")]
    [True, True, True, True, False]
    """
    fewer, more = sorted((line[::2].count(0), line[1::2].count(0)))
    return line.startswith((b"\xff\xfe", b"\xfe\xff")) or more * 4 > len(line) and more > 1.5 * fewer


def is_tar(head: bytes) -> bool:
    """Whether these bytes are the header of a tar archive, whose sum it contains."""
    try:
        return tarfile.TarInfo.frombuf(head[:LONGEST], "utf-8", "surrogateescape") is not None
    except tarfile.HeaderError:
        return False
