"""From the bytes of a response to its text, in bounded memory whatever they claim to be."""

from __future__ import annotations

import codecs
import re
import zlib

_GZIP = zlib.MAX_WBITS | 16
_CHARSETS = re.compile(
    r"utf-?(8|16|32)|ascii|latin|iso-?8859|iso2022|cp\d|koi8|gb|hz|big5|euc|shift|mac|tis|johab"
)
_BOMS = (
    (codecs.BOM_UTF8, "utf-8-sig"),
    (codecs.BOM_UTF32_LE, "utf-32"),
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)


class Body:
    """Collects a body and undoes its compression; never holds more than ``limit`` bytes.

    What is received counts as well, for a stream that decodes to nothing is endless too. When
    either count is past the limit, ``cut`` is true and the rest is not looked at.

    Raises:
        ValueError: an encoding that is neither ``gzip`` nor ``deflate``.
        zlib.error: (by :meth:`add`) not what the encoding says.
    """

    def __init__(self, encoding: str, limit: int) -> None:
        if encoding not in ("", "identity", "gzip", "x-gzip", "deflate"):
            raise ValueError(encoding)
        self._plain = encoding in ("", "identity")
        self._inflate = None if encoding == "deflate" else zlib.decompressobj(_GZIP)
        self._begin: bytes = b""
        self._whole_members = 0
        self._limit = limit
        self._received = 0
        self._data = bytearray()
        self.cut = False

    def add(self, data: bytes) -> bool:
        """Take the next bytes as received; true when there is no room for more."""
        self._received += len(data)
        if self._plain:
            self._keep(data)
        else:
            self._decompress(data)
        self.cut = self.cut or self._received > self._limit
        return self.cut

    def _decompress(self, data: bytes) -> None:
        if self._inflate is None:
            data = self._begin + data
            if len(data) < 2:
                self._begin = data
                return
            self._inflate = zlib.decompressobj(_window(data))
        while data and not self.cut:
            room = self._limit - len(self._data) + 1
            try:
                self._keep(self._inflate.decompress(data, room))
            except zlib.error:
                if not self._whole_members:
                    raise
                # Some servers pad; like browsers, leave it at what came whole.
                return
            data = self._inflate.unconsumed_tail
            if self._inflate.eof:
                self._whole_members += 1
                data = self._inflate.unused_data
                self._inflate = zlib.decompressobj(_GZIP)

    def _keep(self, data: bytes) -> None:
        room = self._limit - len(self._data)
        self._data += data[:room]
        self.cut = len(data) > room

    @property
    def data(self) -> bytes:
        return bytes(self._data)


def _window(begin: bytes) -> int:
    """How to read "deflate": zlib by the standard, and without its header from some servers."""
    is_zlib = begin[0] & 0x0F == 8 and int.from_bytes(begin[:2], "big") % 31 == 0
    return zlib.MAX_WBITS if is_zlib else -zlib.MAX_WBITS


def decode(data: bytes, charset: str | None) -> str:
    """``data`` as text: a byte order mark decides, then ``charset``, else UTF-8.

    What is invalid is replaced; an unknown name, or a codec that is no character set, is UTF-8.
    """
    for mark, name in _BOMS:
        if data.startswith(mark):
            return data.decode(name, "replace")
    try:
        name = codecs.lookup(charset or "utf-8").name
        return data.decode(name if _CHARSETS.match(name) else "utf-8", "replace")
    except (LookupError, ValueError):
        return data.decode("utf-8", "replace")
