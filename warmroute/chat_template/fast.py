"""minijinja in place of jinja2, for templates on which the two agree.

It renders several times faster. It is another implementation, so it is used for a template only after it gave jinja2's
output on every probe (`probes.py`). What it cannot render, jinja2 renders or refuses.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any, Final

import minijinja
from jinja2.filters import do_dictsort

from warmroute.chat_template.agreement import Agreement
from warmroute.chat_template.environment import EndlessTemplateError, raise_exception, tojson
from warmroute.chat_template.inspection import ContentFormat
from warmroute.chat_template.probes import probes
from warmroute.process.native import is_panic

_NAME: Final = "chat"
_OUT_OF_FUEL: Final = "OutOfFuel"
FUEL: Final = 5_000_000
"""Instructions of one rendering, which take a quarter of a second. A chat of ten thousand messages takes a fifth of
them where a template's work is linear in the chat; where it is quadratic, one of a thousand takes most of them."""
_GENERATION: Final = re.compile(r"\{%([-+]?)\s*(end)?generation\s*([-+]?)%\}")


class FastTemplate:
    """One template in minijinja."""

    def __init__(self, source: str, now: Callable[[], datetime]) -> None:
        """Raises minijinja.TemplateError where minijinja cannot read the source."""
        environment = minijinja.Environment(trim_blocks=True, lstrip_blocks=True, pycompat=True)
        environment.add_filter("tojson", tojson)
        environment.fuel = FUEL
        # Python and Rust differ in which characters are blanks, and in how they compare letters without case.
        environment.add_filter("trim", _trim)
        environment.add_filter("dictsort", do_dictsort)
        environment.add_global("raise_exception", raise_exception)
        environment.add_global("strftime_now", lambda fmt: now().strftime(fmt))
        environment.add_template(_NAME, _GENERATION.sub(_plain_block, source))
        self._environment = environment

    def render(self, variables: Mapping[str, Any]) -> str | None:
        """The text; None where rendering fails for any reason: jinja2 then renders or refuses.

        Raises EndlessTemplateError above FUEL: jinja2 would take several times as long.
        """
        try:
            return self._environment.render_template(_NAME, **variables)
        except minijinja.TemplateError as error:
            if error.kind == _OUT_OF_FUEL:
                raise EndlessTemplateError(f"the rendering takes more than {FUEL} instructions") from error
            return None
        except Exception:  # noqa: BLE001  raise_exception and filters raise any kind through it
            return None
        except BaseException as error:
            if is_panic(error):
                return None
            raise


def agreeing(
    fast: FastTemplate | None,
    reference: Callable[[Mapping[str, Any]], str],
    content_format: ContentFormat,
    special_tokens: Mapping[str, str],
) -> Agreement | None:
    """Compare both on every probe. None where they differ on plain chats, and where `fast` is None. Both must refuse
    the same probes.

    Raises EndlessTemplateError where a probe exceeds jinja2's bounds.
    """
    agreement = Agreement.ALL
    for beyond_plain, probe in probes(content_format):
        if beyond_plain and beyond_plain not in agreement:
            continue
        variables = {**special_tokens, **probe}
        try:
            expected = reference(variables)
        except EndlessTemplateError:
            raise
        except Exception:  # noqa: BLE001  templates refuse with any error
            expected = None
        if fast is None:
            return None
        if fast.render(variables) != expected:
            if not beyond_plain:
                return None
            agreement &= ~beyond_plain
    return agreement


def _trim(value: object, chars: str | None = None) -> str:
    return str(value).strip(chars)


def _plain_block(match: re.Match[str]) -> str:
    """minijinja has no generation blocks: `if true` replaces them, with the same blank control."""
    before, end, after = match.groups()
    return f"{{%{before} endif {after}%}}" if end else f"{{%{before} if true {after}%}}"
