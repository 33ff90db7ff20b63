"""One template, compiled, and what engines read off it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any

import jinja2
from jinja2 import meta

from warmroute.chat_template.environment import ChatTemplateError, jinja_environment
from warmroute.chat_template.fast import Agreement, FastTemplate, agreeing, has_plain_calls
from warmroute.chat_template.inspection import ContentFormat, content_format, names_developer


class CompiledTemplate:
    """Renders with minijinja where that gives jinja2's output on the probes, else with jinja2."""

    def __init__(self, source: str, special_tokens: Mapping[str, str], now: Callable[[], datetime]) -> None:
        """Raises ChatTemplateError where the source does not compile."""
        clock = _Clock(now)
        environment = jinja_environment(clock)
        try:
            tree = environment.parse(source)
            self._reference = environment.from_string(source)
        except jinja2.TemplateError as error:
            raise ChatTemplateError(f"the chat template does not compile: {error}") from error
        self.source = source
        self.content_format: ContentFormat = content_format(tree)
        self.takes_developer = names_developer(source)
        self.variables = frozenset(meta.find_undeclared_variables(tree))
        self._fast: FastTemplate | None = None
        self.agreement: Agreement | None = None
        """On which chats minijinja renders in jinja2's place."""
        try:
            self._fast = FastTemplate(source, clock)
        except Exception:  # noqa: BLE001  whatever minijinja cannot read is jinja2's
            return
        with clock:
            self.agreement = agreeing(self._fast, self._reference.render, self.content_format, special_tokens)

    def render(self, variables: Mapping[str, Any]) -> str:
        """The prompt's text. Raises ChatTemplateError where the template refuses or cannot cope."""
        try:
            if self._is_trusted_with(variables) and (text := self._fast_text(variables)) is not None:
                return text
            return self._reference.render(variables)
        except (jinja2.TemplateError, TypeError, ValueError, KeyError, AttributeError, ArithmeticError) as error:
            raise ChatTemplateError(f"the chat template refused the messages: {error}") from error
        except RecursionError as error:
            raise ChatTemplateError("the messages are nested too deeply for the chat template") from error

    def _is_trusted_with(self, variables: Mapping[str, Any]) -> bool:
        if self.agreement is Agreement.PLAIN:
            return has_plain_calls(variables["messages"])
        return self.agreement is Agreement.ALL

    def _fast_text(self, variables: Mapping[str, Any]) -> str | None:
        return None if self._fast is None else self._fast.render(variables)


class _Clock:
    """A clock that stands still while renderers are compared: the second would not be the same for both."""

    def __init__(self, now: Callable[[], datetime]) -> None:
        self._now = now
        self._frozen: datetime | None = None

    def __call__(self) -> datetime:
        return self._frozen or self._now()

    def __enter__(self) -> None:
        self._frozen = datetime(2024, 2, 29, 13, 4, 5)

    def __exit__(self, *_: object) -> None:
        self._frozen = None
