"""One compiled template, and the properties that engines derive from its source."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, Protocol

import jinja2
from jinja2 import meta

from warmroute.chat_template.agreement import Agreement, is_alike
from warmroute.chat_template.environment import ChatTemplateError, EndlessTemplateError, jinja_environment
from warmroute.chat_template.fast import FastTemplate, agreeing
from warmroute.chat_template.inspection import ContentFormat, content_format, names_developer

TEXT_LIMIT: Final = 32_000_000
"""Characters of a prompt: four times as many as a gateway tokenises."""


@dataclass(frozen=True, slots=True)
class Findings:
    """What is found out about a template when it is first compiled."""

    content_format: ContentFormat
    takes_developer: bool
    agreement: Agreement | None
    """On which chats minijinja renders in jinja2's place."""


class Rendering(Protocol):
    """One template, here or in another process."""

    content_format: ContentFormat
    takes_developer: bool

    def render(self, variables: Mapping[str, Any]) -> str:
        """The prompt's text. Raises ChatTemplateError where the template refuses or cannot cope."""


class CompiledTemplate:
    """Renders with minijinja where that gives jinja2's output on the probes, else with jinja2."""

    def __init__(
        self,
        source: str,
        special_tokens: Mapping[str, str],
        now: Callable[[], datetime],
        found: Findings | None = None,
    ) -> None:
        """`found`: what is known already, by the same release; without it the template is tried on the probes.

        Raises ChatTemplateError where the source does not compile, or does not come to an end on a probe.
        """
        clock = _Clock(now)
        self._environment = environment = jinja_environment(clock)
        try:
            tree = environment.parse(source)
            self._reference = environment.from_string(environment.bounded(environment.parse(source)))
        except (jinja2.TemplateError, SyntaxError, RecursionError) as error:  # of jinja2, and of what it writes
            raise ChatTemplateError(f"the chat template does not compile: {error}") from error
        self.source = source
        self.content_format: ContentFormat = content_format(tree)
        self.takes_developer = names_developer(source)
        self.variables = frozenset(meta.find_undeclared_variables(tree))
        self._fast: FastTemplate | None = None
        self.agreement: Agreement | None = None
        """On which chats minijinja is used; None: on none."""
        if found is None or found.agreement is not None:
            with contextlib.suppress(Exception):  # whatever minijinja cannot read is jinja2's
                self._fast = FastTemplate(source, clock)
        if found is not None:
            self.agreement = found.agreement
            return
        try:
            with clock:
                self.agreement = agreeing(self._fast, self._rendered, self.content_format, special_tokens)
        except EndlessTemplateError as error:
            raise ChatTemplateError(f"the chat template does not come to an end: {error}") from error

    @property
    def findings(self) -> Findings:
        return Findings(self.content_format, self.takes_developer, self.agreement)

    def render(self, variables: Mapping[str, Any]) -> str:
        """As `Rendering.render`."""
        try:
            if self._is_trusted_with(variables) and (text := self._fast_text(variables)) is not None:
                return text
            return self._rendered(variables)
        except (jinja2.TemplateError, TypeError, ValueError, KeyError, AttributeError, ArithmeticError) as error:
            raise ChatTemplateError(f"the chat template refused the messages: {error}") from error
        except RecursionError as error:
            raise ChatTemplateError("the messages are nested too deeply for the chat template") from error

    def _is_trusted_with(self, variables: Mapping[str, Any]) -> bool:
        return self.agreement is not None and is_alike(variables, self.agreement)

    def _rendered(self, variables: Mapping[str, Any]) -> str:
        """By jinja2."""
        self._environment.begin()
        pieces: list[str] = []
        length = 0
        for piece in self._reference.generate(variables):
            pieces.append(piece)
            length += len(piece)
            if length > TEXT_LIMIT:
                raise EndlessTemplateError(f"the text has more than {TEXT_LIMIT} characters")
        return "".join(pieces)

    def _fast_text(self, variables: Mapping[str, Any]) -> str | None:
        return None if self._fast is None else self._fast.render(variables)


class _Clock:
    """A clock that stops while the renderers are compared, so that both see the same time."""

    def __init__(self, now: Callable[[], datetime]) -> None:
        self._now = now
        self._frozen: datetime | None = None

    def __call__(self) -> datetime:
        return self._frozen or self._now()

    def __enter__(self) -> None:
        self._frozen = datetime(2024, 2, 29, 13, 4, 5)

    def __exit__(self, *_: object) -> None:
        self._frozen = None
