"""Workers' files, tried in processes of bounded memory and time before this one looks at them.

- A tokenizer is loaded there first, with all that loading tries. What passed is loaded here too.
- Templates are read, compiled and tried there. Those whose every rendering is cheap render the chats of the event
  loop's size here; all else is rendered there, a chat at a time, by a process that stays.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from gateway.prompts.limited_process import BrokenError, LimitedProcess, RefusedError
from warmroute.chat_template import ChatTemplate, ChatTemplateError
from warmroute.chat_template import files as template_files
from warmroute.chat_template.compiled import Findings
from warmroute.chat_template.files import MissingTemplateError
from warmroute.chat_template.verdict import Verdict

logger = logging.getLogger(__name__)

# The largest tokenizers in use take 700 MB; address space is more than memory.
TOKENIZER_BYTES: Final = 3_221_225_472
TOKENIZER_CPU_SECONDS: Final = 60
TEMPLATE_BYTES: Final = 536_870_912
TOKENIZER_SECONDS: Final = 120.0
TEMPLATE_SECONDS: Final = 30.0
"""Longest wait for a trial, of a busy machine too: 5 and 2 seconds as a rule."""
RENDER_SECONDS: Final = 1.0
SMALL_CHARACTERS: Final = 262_144
STRIKES: Final = 3
"""Chats up to `SMALL_CHARACTERS` that end the process, after which the template is refused: larger ones may be to
blame themselves, and no client may turn a template off."""


class RefusedFilesError(Exception):
    """The files are not to be tried again; the message says why."""


@dataclass(slots=True)
class Templates:
    """A model's templates: for chats of the event loop's size, and for all others. None: chats go by load."""

    small: ChatTemplate | None = None
    large: ChatTemplate | None = None
    renderer: Renderer | None = None

    def close(self) -> None:
        if self.renderer is not None:
            self.renderer.close()


class Renderer:
    """A process that renders a model's templates, and what it is told after each start."""

    def __init__(self, files: Mapping[str, bytes]) -> None:
        self._files = dict(files)
        self._verdict: dict[str, Any] | None = None
        self._process = LimitedProcess(memory_bytes=TEMPLATE_BYTES, opening=self._opening)
        self._strikes = 0
        self.trouble = ""
        """Why its templates are to be refused from now on."""

    def _opening(self) -> tuple[Any, ...]:
        return ("template", self._files, self._verdict)

    def judge(self) -> Verdict:
        """Try the templates. Raises RefusedFilesError, MissingTemplateError, BrokenError for what is not their
        fault."""
        try:
            fields = json.loads(self._process.open(seconds=TEMPLATE_SECONDS))
        except RefusedError as error:
            if error.missing:
                raise MissingTemplateError(str(error)) from error
            raise RefusedFilesError(str(error)) from error
        except BrokenError as error:
            if not error.by_question:
                raise
            raise RefusedFilesError(f"to try the chat template {error}") from error
        self._verdict = fields
        return Verdict.from_fields(fields)

    def render(self, name: str, variables: Mapping[str, Any]) -> str:
        """Raises ChatTemplateError."""
        if self.trouble:
            raise ChatTemplateError(self.trouble)
        try:
            answer = self._process.ask("render", name, dict(variables), seconds=RENDER_SECONDS)
        except RefusedError as error:
            raise ChatTemplateError(str(error)) from error
        except BrokenError as error:
            if error.by_question and error.size <= SMALL_CHARACTERS:
                self._strikes += 1
                if self._strikes >= STRIKES:
                    self.trouble = f"to render a small chat {error}"
            raise ChatTemplateError(f"to render the chat {error}") from error
        return answer.decode("utf-8", "surrogatepass")

    def rest(self) -> None:
        """End the process until it is needed."""
        self._process.rest()

    def close(self) -> None:
        self._process.close()


class _There:
    """One template of a Renderer: a `Rendering`."""

    def __init__(self, renderer: Renderer, name: str, found: Findings) -> None:
        self._renderer = renderer
        self._name = name
        self.content_format = found.content_format
        self.takes_developer = found.takes_developer

    def render(self, variables: Mapping[str, Any]) -> str:
        return self._renderer.render(self._name, variables)


def try_tokenizer(folder: Path) -> None:
    """Load the folder's tokenizer in a process that may break. Blocks for seconds.

    Raises RefusedFilesError, BrokenError for what is not the file's fault, OSError.
    """
    process = LimitedProcess(memory_bytes=TOKENIZER_BYTES, cpu_seconds=TOKENIZER_CPU_SECONDS)
    try:
        process.ask("tokenizer", str(folder), seconds=TOKENIZER_SECONDS)
    except RefusedError as error:
        raise RefusedFilesError(str(error)) from error
    except BrokenError as error:
        if not error.by_question:
            raise
        raise RefusedFilesError(f"to load tokenizer.json {error}") from error
    finally:
        process.close()


def try_templates(folder: Path) -> Templates:
    """Try the folder's templates in the same way; none where the model has none."""
    files = template_files.read_folder(folder)
    renderer = Renderer(files)
    try:
        verdict = renderer.judge()
        tokens = template_files.special_tokens(files)
        there = {name: _There(renderer, name, found) for name, found in verdict.found.items()}
        large = ChatTemplate.elsewhere(there, tokens)
        if not verdict.cheap:
            return Templates(None, large, renderer)
        renderer.rest()
        named = template_files.used(template_files.templates(files))
        return Templates(ChatTemplate(named, tokens, found=verdict.found), large, renderer)
    except MissingTemplateError as error:
        logger.warning("chats are routed by load: %s", error)
        renderer.close()
        return Templates()
    except BaseException:
        renderer.close()
        raise
