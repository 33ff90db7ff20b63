"""What engines read off a template before they render it."""

from __future__ import annotations

import pytest
from jinja2 import Environment

from warmroute.chat_template.inspection import content_format, names_developer

LOOP = "{% for message in messages %}"


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        (LOOP + "{{ message.content }}{% endfor %}", "string"),
        (LOOP + "{% for part in message.content %}{% endfor %}{% endfor %}", "openai"),
        (LOOP + "{% for part in message['content'] %}{% endfor %}{% endfor %}", "openai"),
        (LOOP + "{% for part in message['content'] | list %}{% endfor %}{% endfor %}", "openai"),
        (LOOP + "{% for part in message['content'][1:] %}{% endfor %}{% endfor %}", "openai"),
        (LOOP + "{% for part in message.tool_calls %}{% endfor %}{% endfor %}", "string"),
        (
            "{% set rest = messages[1:] %}{% set all = rest %}"
            + LOOP.replace("messages", "all")
            + "{% for part in message.content %}{% endfor %}{% endfor %}",
            "openai",
        ),
        ("{% for m in others %}{% for p in m.content %}{% endfor %}{% endfor %}", "string"),
        ("{% macro show(content) %}{% for part in content %}{{ part }}{% endfor %}{% endmacro %}", "openai"),
        ("{% for a, b in messages | items %}{% endfor %}", "string"),
        ("{% for m in messages %}{% set m = messages %}{% endfor %}", "string"),
        ("fixed", "string"),
    ],
)
def test_contents_are_lists_where_a_loop_runs_over_them(source: str, expected: str) -> None:
    assert content_format(Environment(autoescape=False).parse(source)) == expected  # noqa: S701


def test_developers_are_known_by_their_quoted_name() -> None:
    assert names_developer("{% if message.role == 'developer' %}")
    assert names_developer('{% if message.role in ["system", "developer"] %}')
    assert not names_developer("{# for developers #}{{ developer }}")
