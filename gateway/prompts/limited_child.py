"""The process in which files are tried that workers offer: `python -m gateway.prompts.limited_child FD BYTES SECONDS`.

It bounds its own memory and CPU before it looks at anything, answers one question after the other on the socket `FD`,
and ends with it. Whatever the files do to libraries and interpreter ends this process, and no other.
"""

from __future__ import annotations

import json
import math
import pickle
import resource
import signal
import socket
import struct
import sys
from pathlib import Path
from typing import Any, Final

LENGTH: Final = struct.Struct("<Q")
TEXT: Final = b"t"
REFUSED: Final = b"r"
MISSING: Final = b"m"
"""First byte of an answer: what was asked for, why it cannot be had, or that there is none."""
MESSAGE_CHARACTERS: Final = 300


def main(arguments: list[str]) -> None:
    """Answer until the other end closes the socket."""
    descriptor, memory_bytes, cpu_seconds = map(int, arguments)
    resource.setrlimit(resource.RLIMIT_AS, (memory_bytes, memory_bytes))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if cpu_seconds:
        resource.setrlimit(resource.RLIMIT_CPU, (cpu_seconds, cpu_seconds))
    sys.setrecursionlimit(1_000)
    answerer = _Answerer()
    with socket.socket(fileno=descriptor) as connection:
        while (data := receive(connection)) is not None:
            seconds, question = pickle.loads(data)  # noqa: S301  from our own parent
            # Should the parent be gone, nobody else ends this process.
            signal.alarm(math.ceil(seconds) + 2)
            answer = answerer.answer(question)
            signal.alarm(0)
            connection.sendall(LENGTH.pack(len(answer)))
            connection.sendall(answer)


def receive(connection: socket.socket, limit: int = 1 << 40) -> bytes | None:
    """One message; None at the end. Raises ValueError beyond the limit, OSError."""
    head = _exactly(connection, LENGTH.size)
    if head is None:
        return None
    (length,) = LENGTH.unpack(head)
    if length > limit:
        raise ValueError(f"an answer of {length} bytes")
    return _exactly(connection, length)


def _exactly(connection: socket.socket, count: int) -> bytes | None:
    data = bytearray()
    while len(data) < count:
        piece = connection.recv(min(count - len(data), 1 << 20))
        if not piece:
            return None
        data += piece
    return bytes(data)


class _Answerer:
    """Questions are tuples: what, and with what."""

    def __init__(self) -> None:
        self._template: Any = None

    def answer(self, question: tuple[Any, ...]) -> bytes:
        try:
            match question:
                case "tokenizer", str(folder):
                    return TEXT + self._tokenizer(Path(folder))
                case "template", dict(files), found:
                    return self._load(files, found)
                case "render", str(name), dict(variables):
                    return TEXT + self._render(name, variables)
            return REFUSED + b"unknown question"
        except MemoryError:
            return REFUSED + b"it takes more memory than is given"
        except Exception as error:  # noqa: BLE001  whatever files make of libraries
            words = str(error) or repr(error)
            return REFUSED + words[:MESSAGE_CHARACTERS].encode("utf-8", "replace")

    @staticmethod
    def _tokenizer(folder: Path) -> bytes:
        # Half a second that templates need not wait for.
        from gateway.prompts.tokenizer import PromptTokenizer
        from gateway.prompts.tokenizer_check import check_tokenizer

        check_tokenizer((folder / "tokenizer.json").read_bytes())
        return PromptTokenizer.from_folder(folder).digest.encode()

    def _load(self, files: dict[str, bytes], found: dict[str, Any] | None) -> bytes:
        from warmroute.chat_template.files import MissingTemplateError
        from warmroute.chat_template.verdict import Verdict, judge

        try:
            self._template, verdict = judge(files, None if found is None else Verdict.from_fields(found))
        except MissingTemplateError as error:
            return MISSING + str(error).encode()
        return TEXT + json.dumps(verdict.to_fields()).encode()

    def _render(self, name: str, variables: dict[str, Any]) -> bytes:
        text: str = self._template.named(name).render(variables)
        return text.encode("utf-8", "surrogatepass")


if __name__ == "__main__":
    main(sys.argv[1:])
