"""Strict YAML 1.2 with positions, for every file a person writes: settings now, fabric and policy files later.

The library parses; this module builds the values itself, from parser events, so that nothing is recursive, every value
keeps its line and column, and a repeated key is a fault and not a silent overwrite.  It must not know what any file
means.  Only the YAML 1.2 core types exist: ``no``, ``off``, ``12:30``, ``0100`` and MAC addresses stay what they look
like (field case POL-02).
"""

from __future__ import annotations

import difflib
import errno
import re
import stat
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError, YAMLError
from ruamel.yaml.events import (
    AliasEvent,
    DocumentStartEvent,
    Event,
    MappingEndEvent,
    MappingStartEvent,
    ScalarEvent,
    SequenceEndEvent,
    SequenceStartEvent,
)
from ruamel.yaml.reader import ReaderError

from aifabric_ctrl.model.errors import InvalidValue

MAX_BYTES = 1 << 20
MAX_DEPTH = 32
MAX_NODES = 50_000  # about a second of parsing; a fabric of a thousand switches needs a tenth of it
MAX_SCALAR_DIGITS = 40  # int() of longer text is quadratic and no setting needs it
MAX_FAULTS = 50  # more would only scroll the first one away

Scalar = None | bool | int | float | str
Plain = Scalar | list["Plain"] | dict[str, "Plain"]


class Position(NamedTuple):
    """Line and column, both from 1."""

    line: int
    column: int


class Fault(NamedTuple):
    """One thing wrong: ``where`` is ``file:line:column``, ``do`` what to do about it."""

    where: str
    what: str
    do: str = ""

    def __str__(self) -> str:
        text = f"{self.where}: {self.what}" if self.where else self.what
        return f"{text}; {self.do}" if self.do else text


class YamlFault(InvalidValue):
    """The file cannot be read as YAML at all; ``fault`` says where."""

    def __init__(self, fault: Fault) -> None:
        super().__init__(fault.what, fault.do, fault.where)
        self.fault = fault


@dataclass(slots=True)
class Node:
    """One value and where it starts.  A mapping keeps each key's own position in ``keys``."""

    at: Position
    value: Scalar | list[Node] | dict[str, Node] = None
    keys: dict[str, Position] = field(default_factory=dict)


@dataclass(slots=True)
class Document:
    """A parsed file: ``root`` is None when there is nothing in it; ``faults`` are those that did not stop the reading."""

    name: str
    root: Node | None
    faults: list[Fault]

    def where(self, at: Position) -> str:
        return f"{self.name}:{at.line}:{at.column}"


@dataclass(slots=True)
class _Open:
    """A collection whose end has not been seen; ``key`` is the mapping key that waits for its value."""

    node: Node
    key: str | None = None
    skip: bool = False  # the key was a repeat: its value is read and thrown away


def read_yaml(path: str | Path) -> Document:
    """Read and parse one file.

    Raises:
        YamlFault: missing, unreadable, not a plain file, too large, not UTF-8 text, or not YAML.
    """
    return parse_yaml(_read_text(Path(path)), str(path))


def parse_yaml(text: str, name: str) -> Document:
    """Parse text; ``name`` stands for the file in messages.

    Raises:
        YamlFault: a syntax fault, or a limit (size, depth, number of values) is passed.
    """
    builder = _Builder(name)
    parser = YAML(typ="safe", pure=True)
    try:
        for event in parser.parse(text):
            builder.take(event)
    except YamlFault:
        raise
    except MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        at = Position(mark.line + 1, mark.column + 1) if mark else Position(1, 1)
        raise YamlFault(Fault(f"{name}:{at.line}:{at.column}", f"not YAML: {_one_line(error)}", _syntax_hint(error))) from None
    except ReaderError as error:
        at = _position_of(text, error.position)
        code = error.character if isinstance(error.character, int) else ord(str(error.character)[:1] or "\0")
        raise YamlFault(
            Fault(f"{name}:{at.line}:{at.column}", f"character U+{code:04X} may not stand in YAML", "remove it")
        ) from None
    except (YAMLError, ValueError) as error:  # the scanner lets chr() fail on \U escapes beyond Unicode
        raise YamlFault(Fault(name, f"not YAML: {' '.join(str(error).split())[:200]}", "check the quoting")) from None
    return Document(name, builder.root, builder.faults)


def plain(node: Node) -> Plain:
    """The value without positions.  Depth is bounded by MAX_DEPTH, so recursion is safe."""
    if isinstance(node.value, list):
        return [plain(item) for item in node.value]
    if isinstance(node.value, dict):
        return {key: plain(item) for key, item in node.value.items()}
    return node.value


def locate(node: Node, path: Iterable[int | str]) -> Position:
    """The position of the deepest part of ``path`` that exists, as validation errors name parts by path."""
    for part in path:
        inner: Node | None = None
        if isinstance(node.value, dict) and isinstance(part, str):
            inner = node.value.get(part)
        elif isinstance(node.value, list) and isinstance(part, int) and 0 <= part < len(node.value):
            inner = node.value[part]
        if inner is None:
            break
        node = inner
    return node.at


def closest(name: str, known: Iterable[str]) -> str:
    """The known name most like ``name``, or an empty text when none is like it."""
    found = difflib.get_close_matches(name[:100], list(known), n=1, cutoff=0.6)
    return found[0] if found else ""


def show(value: object, limit: int = 60) -> str:
    """A value as a person would recognise it in an error, shortened and with control characters escaped."""
    words = {True: "true", False: "false", None: "nothing"}
    if value is None or isinstance(value, bool):
        return words[value]
    text = repr(value) if isinstance(value, str) else str(value)
    text = text.encode("unicode_escape").decode("ascii") if not text.isprintable() else text
    return text if len(text) <= limit else text[: limit - 3] + "..."


class _Builder:
    """Turns parser events into nodes with an explicit stack."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.root: Node | None = None
        self.faults: list[Fault] = []
        self._stack: list[_Open] = []
        self._nodes = 0
        self._documents = 0

    def take(self, event: Event) -> None:
        """Use one event.

        Raises:
            YamlFault: what the event brings is not allowed in our files.
        """
        at = Position(event.start_mark.line + 1, event.start_mark.column + 1) if event.start_mark else Position(1, 1)
        if isinstance(event, DocumentStartEvent):
            self._start_document(event, at)
        elif isinstance(event, AliasEvent):
            raise self._fatal(at, f"alias *{event.anchor} is not allowed", "write the value out")
        elif isinstance(event, (MappingEndEvent, SequenceEndEvent)):
            self._stack.pop()
        elif isinstance(event, (ScalarEvent, MappingStartEvent, SequenceStartEvent)):
            self._value(event, at)

    def _start_document(self, event: DocumentStartEvent, at: Position) -> None:
        self._documents += 1
        if self._documents > 1:
            raise self._fatal(at, "a second YAML document starts here", "keep one document a file: remove the '---' line")
        if event.version and tuple(event.version) != (1, 2):
            raise self._fatal(
                Position(1, 1), "the file asks for another YAML version", "remove the %YAML line: files are YAML 1.2"
            )

    def _value(self, event: ScalarEvent | MappingStartEvent | SequenceStartEvent, at: Position) -> None:
        self._nodes += 1
        if self._nodes > MAX_NODES:
            raise self._fatal(at, f"more than {MAX_NODES} values in one file", "split the file")
        if event.tag is not None:
            raise self._fatal(at, f"tag {show(str(event.tag))} is not allowed", "remove it: plain and quoted values are enough")
        top = self._stack[-1] if self._stack else None
        if top is not None and isinstance(top.node.value, dict) and top.key is None:
            self._key(top, event, at)
            return
        node = Node(at)
        if isinstance(event, ScalarEvent):
            node.value = _scalar(event.value) if event.implicit[0] else event.value
            self._check_text(event.value, at)
        else:
            node.value = {} if isinstance(event, MappingStartEvent) else []
        self._attach(top, node)
        if not isinstance(event, ScalarEvent):
            self._stack.append(_Open(node))
            if len(self._stack) > MAX_DEPTH:
                raise self._fatal(at, f"values are nested more than {MAX_DEPTH} deep", "flatten them or close a bracket")

    def _key(self, top: _Open, event: ScalarEvent | MappingStartEvent | SequenceStartEvent, at: Position) -> None:
        if not isinstance(event, ScalarEvent):
            raise self._fatal(at, "a list or mapping cannot be a key", "use a name as the key")
        self._check_text(event.value, at)
        top.key, first = event.value, top.node.keys.get(event.value)
        top.skip = first is not None
        if first is None:
            top.node.keys[event.value] = at
        elif len(self.faults) < MAX_FAULTS:
            where = f"{self.name}:{at.line}:{at.column}"
            self.faults.append(
                Fault(where, f"{show(event.value)} is set twice, first in line {first.line}", "remove one of the two")
            )

    def _attach(self, top: _Open | None, node: Node) -> None:
        if top is None:
            self.root = node
        elif isinstance(top.node.value, list):
            top.node.value.append(node)
        elif isinstance(top.node.value, dict) and top.key is not None:
            if not top.skip:
                top.node.value[top.key] = node
            top.key, top.skip = None, False

    def _check_text(self, text: str, at: Position) -> None:
        if any(0xD800 <= ord(c) <= 0xDFFF or c == "\0" for c in text):
            raise self._fatal(at, "a text holds a character that is not Unicode text", "remove the \\u or \\0 escape")

    def _fatal(self, at: Position, what: str, do: str) -> YamlFault:
        return YamlFault(Fault(f"{self.name}:{at.line}:{at.column}", what, do))


_NULL = {"", "~", "null", "Null", "NULL"}
_BOOL = {"true": True, "True": True, "TRUE": True, "false": False, "False": False, "FALSE": False}
_INT = re.compile(r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")


def _scalar(text: str) -> Scalar:
    """The YAML 1.2 core schema (10.3.2), less .inf and .nan, which no number of ours may be and so stay text."""
    if text in _NULL:
        return None
    if text in _BOOL:
        return _BOOL[text]
    if len(text) > MAX_SCALAR_DIGITS:
        return text
    if _INT.fullmatch(text):
        if re.fullmatch(r"[-+]?0[0-9]+", text):
            return text  # "0100" is decimal in YAML 1.2, octal in 1.1: nobody can tell what was meant
        return int(text, 0) if text[:2] in ("0o", "0x") else int(text)
    return float(text) if _FLOAT.fullmatch(text) else text


def plain_scalar(text: str) -> Scalar:
    """Read text from outside a file (an environment variable) by the same rules as an unquoted YAML value."""
    return _scalar(text.strip())


def _read_text(path: Path) -> str:
    name = str(path)
    try:
        mode = path.stat().st_mode  # before opening: opening a pipe would wait for its writer
        if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):
            raise YamlFault(Fault(name, "not a plain file", "name a YAML file"))
        with path.open("rb") as stream:
            raw = stream.read(MAX_BYTES + 1)
    except YamlFault:
        raise
    except ValueError:  # a NUL byte in the name
        raise YamlFault(Fault(show(name), "not a file name", "name a YAML file")) from None
    except OSError as error:
        raise YamlFault(Fault(name, *_os_words(error))) from None
    if len(raw) > MAX_BYTES:
        raise YamlFault(Fault(name, f"larger than {MAX_BYTES >> 20} MiB", "split it, or name another file"))
    if raw.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise YamlFault(Fault(f"{name}:1:1", "UTF-16 text", "save it as UTF-8"))
    try:
        text = raw.removeprefix(b"\xef\xbb\xbf").decode("utf-8")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        column = error.start - raw.rfind(b"\n", 0, error.start)
        raise YamlFault(
            Fault(f"{name}:{line}:{column}", f"byte 0x{raw[error.start]:02x} is not UTF-8", "save it as UTF-8")
        ) from None
    if "\0" in text:
        at = _position_of(text, text.index("\0"))
        raise YamlFault(Fault(f"{name}:{at.line}:{at.column}", "NUL byte", "this is not a text file: name a YAML file"))
    return text


def _os_words(error: OSError) -> tuple[str, str]:
    words = {
        errno.ENOENT: ("no such file", "create it, or correct the name"),
        errno.ENOTDIR: ("no such file: part of its path is not a directory", "correct the name"),
        errno.EISDIR: ("a directory, not a file", "name the YAML file itself"),
        errno.EACCES: ("not readable by this user", "give this user read permission"),
        errno.ELOOP: ("symbolic links go round in a circle", "correct the link"),
        errno.ENAMETOOLONG: ("the name is too long", "correct the name"),
    }
    return words.get(error.errno or 0, (f"cannot be read: {error.strerror}", "check the file"))


def _position_of(text: str, offset: int) -> Position:
    return Position(text.count("\n", 0, offset) + 1, offset - text.rfind("\n", 0, offset))


def _one_line(error: MarkedYAMLError) -> str:
    parts = [str(p).strip() for p in (error.context, error.problem) if p]
    return " ".join(", ".join(parts).split())[:200]


def _syntax_hint(error: MarkedYAMLError) -> str:
    problem = str(error.problem or "")
    if "'\\t'" in problem:
        return "indent with spaces, not tabs"
    if "mapping values are not allowed" in problem:
        return "check the indentation, or quote a value that holds ': '"
    if "end of stream" in problem or "stream end" in problem:
        return "close the quote or bracket"
    if "cannot start any token" in problem:
        return "quote the value"
    return "check the indentation and brackets"
