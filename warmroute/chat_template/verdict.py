"""What is to be known of templates from workers before they are put to use, found out in a process of its own."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, Self

from warmroute.chat_template import files as template_files
from warmroute.chat_template.agreement import Agreement
from warmroute.chat_template.compiled import Findings
from warmroute.chat_template.cost import is_cheap
from warmroute.chat_template.environment import ChatTemplateError
from warmroute.chat_template.files import Files
from warmroute.chat_template.grammar import check
from warmroute.chat_template.template import ChatTemplate

CONFIG_BYTES: Final = 16_777_216
"""Of a configuration file; the largest known, with all of a vocabulary's added tokens, have 1 MB."""
TOKEN_CHARACTERS: Final = 1_000
"""Of a special token."""
TOKENS: Final = 1_000


@dataclass(frozen=True, slots=True)
class Verdict:
    """`cheap`: chats of the event loop's size cost no more than `cost` says, whatever they hold, so that they may be
    rendered there. All others are rendered where time and memory are bounded."""

    found: Mapping[str, Findings]
    cheap: bool

    def to_fields(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "cheap": self.cheap,
            "found": {
                name: [
                    each.content_format,
                    each.takes_developer,
                    None if each.agreement is None else each.agreement.value,
                ]
                for name, each in self.found.items()
            },
        }

    @classmethod
    def from_fields(cls, fields: Mapping[str, Any]) -> Self:
        found = {
            name: Findings(form, developer, None if agreement is None else Agreement(agreement))
            for name, (form, developer, agreement) in fields["found"].items()
        }
        return cls(found, fields["cheap"])


def judge(
    files: Files, known: Verdict | None = None, *, now: Callable[[], datetime] = datetime.now
) -> tuple[ChatTemplate, Verdict]:
    """Check, compile and, unless the verdict is `known`, try a model's templates. Raises ChatTemplateError."""
    for name, contents in files.items():
        if len(contents) > CONFIG_BYTES:
            raise ChatTemplateError(f"{name} has {len(contents)} bytes: {CONFIG_BYTES} are taken")
    named = template_files.used(template_files.templates(files))
    tokens = template_files.special_tokens(files)
    if len(tokens) > TOKENS or any(len(token) > TOKEN_CHARACTERS for token in tokens.values()):
        raise ChatTemplateError(
            f"there are special tokens of more than {TOKEN_CHARACTERS} characters, or {TOKENS} ones"
        )
    if known is not None:
        return ChatTemplate(named, tokens, now=now, found=known.found), known
    trees = [check(source) for source in named.values()]
    template = ChatTemplate(named, tokens, now=now)
    return template, Verdict(template.findings, all(is_cheap(tree, tokens) for tree in trees))
