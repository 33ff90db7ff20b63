"""Templates that are made to do harm: refused, or ended, within seconds and megabytes, whatever they say."""

from __future__ import annotations

import json
import os
import random
import resource
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from warmroute.chat_template import ChatTemplate, ChatTemplateError
from warmroute.chat_template.cost import why_dear
from warmroute.chat_template.environment import EndlessTemplateError
from warmroute.chat_template.files import MissingTemplateError
from warmroute.chat_template.grammar import SOURCE_LIMIT, RefusedTemplateError, check
from warmroute.chat_template.verdict import Verdict, judge

INPUTS = int(os.environ.get("WARMROUTE_FUZZ_INPUTS", "10000"))
MEMORY_BYTES = 768 << 20
SECONDS = 30.0
CHATML = "{% for m in messages %}<{{ m.role }}>{{ m.content }}</>{% endfor %}"

REFUSED = {
    "format": "{{ '{:>400000000000}'.format(1) }}",
    "format of a variable": "{{ messages[0].content.format(1) }}",
    "percent": "{{ '%400000000000d' % 1 }}",
    "format filter": "{{ '%400000000d' | format(1) }}",
    "format filter of a variable": "{{ messages[0].content | format(1) }}",
    "power": "{{ 10**(10**8) }}",
    "power without parentheses": "{{ 2 ** 2 ** 2 ** 2 ** 2 ** 2 }}",
    "huge number": "{{ 1" + "0" * 60 + " }}",
    "number beyond Python's digits": "{{ " + "9" * 5_000 + " }}",
    "huge float": "{{ 1e300 }}",
    "lipsum": "{{ lipsum(10**6) }}",
    "plain lipsum": "{{ lipsum(100000) }}",
    "indented JSON": "{{ messages | tojson(indent=1000000000) }}",
    "indented by a variable": "{{ messages | tojson(indent=n) }}",
    "indented by place": "{{ messages | tojson(false, 1000000) }}",
    "separators": "{{ messages | tojson(separators=(s, s)) }}",
    "indent": "{{ messages[0].content | indent(100000000) }}",
    "slice": "{{ [1] | slice(1000000000) | list }}",
    "batch": "{{ [1] | batch(1000000000, 'x') | list }}",
    "center": "{{ 'x' | center(1000000000) }}",
    "center method": "{{ 'x'.center(1000000000) }}",
    "ljust": "{{ 'x'.ljust(1000000000) }}",
    "zfill": "{{ 'x'.zfill(1000000000) }}",
    "expandtabs": "{{ '\\t'.expandtabs(1000000000) }}",
    "wordwrap": "{{ 'x' | wordwrap(1) }}",
    "groupby": "{{ messages | groupby('role') }}",
    "truncate": "{{ 'x' | truncate(1000000000) }}",
    "xmlattr": "{{ messages[0] | xmlattr }}",
    "pprint": "{{ messages | pprint }}",
    "urlize": "{{ 'http://a' | urlize }}",
    "sum": "{{ messages | sum(start=[]) }}",
    "map of a filter": "{{ messages | map('center', 100000000) | list }}",
    "clock": "{{ strftime_now('%100000000Y') }}",
    "clock's format": "{{ strftime_now(messages[0].content) }}",
    "long clock": "{{ strftime_now('" + "%A" * 100 + "') }}",
    "include": "{% include 'x' %}",
    "import": "{% import 'x' as x %}",
    "extends": "{% extends 'x' %}",
    "block": "{% block a %}{% endblock %}",
    "filter block": "{% filter center(1000000) %}x{% endfilter %}",
    "cycler": "{% set c = cycler(1, 2) %}",
    "joiner": "{% set c = joiner(',') %}",
    "dict": "{{ dict(a=1) }}",
    "recursive loop": "{% for x in [1, 2] recursive %}{{ loop([1, 2]) }}{% endfor %}",
    "stars": "{{ range(*messages) }}",
    "dunder": "{{ ''.__class__ }}",
    "renamed function": "{% set f = range %}{{ f(3) }}",
    "raw": "{% raw %}{{ 1 }}{% endraw %}",
    "deep brackets": "{{ " + "[" * 100_000 + "]" * 100_000 + " }}",
    "brackets within a limit": "{{ " + "[" * 90 + "]" * 90 + " }}",
    "long chain": "{{ x" + ".a" * 20_000 + " }}",
    "long sum": "{{ 1" + " + 1" * 5_000 + " }}",
    "many parts": "{{1}}" * 24_000,
    "nested loops": "{% for a in messages %}" * 10 + "x" + "{% endfor %}" * 10,
    "nested conditions": "{% if a %}" * 500 + "{% endif %}" * 500,
    "long": "x" * (SOURCE_LIMIT + 1),
    "very long": "x" * 50_000_000,
    "long comment": "{#" + "x" * 50_000_000 + "#}",
    "attribute of a call": "{{ namespace(a=1)(2) }}",
    "unicode digits": "{{ 'x' | center(\u0661\u0660\u0660\u0660) }}",
    "debug": "{% debug %}",
    "autoescape": "{% autoescape true %}{% endautoescape %}",
    "with": "{% with a = 1 %}{% endwith %}",
    "trans": "{% trans %}x{% endtrans %}",
}
"""What says by itself that no model needs it. 50 MB are more than a worker's file may have within a minute of Redis."""

LEGAL = {
    "doubled text": "{% set ns = namespace(s='x') %}{% for i in range(60) %}{% set ns.s = ns.s ~ ns.s %}{% endfor %}",
    "doubled in a row": "{% set s = messages[0].content ~ 'x' %}" + "{% set s = s ~ s %}" * 60 + "{{ s }}",
    "doubled list": "{% set ns = namespace(s=[1]) %}{% for i in range(60) %}{% set ns.s = ns.s + ns.s %}{% endfor %}",
    "lists of lists": "{% set l = [1] %}" + "{% set l = [l, l] %}" * 60 + "{{ l }}",
    "lists of lists as JSON": "{% set l = [1] %}" + "{% set l = [l, l] %}" * 60 + "{{ l | tojson }}",
    "multiplied": "{% set s = 'x' %}" + "{% set s = s * 1000 %}" * 9 + "{{ s }}",
    "multiplied numbers": "{% set ns = namespace(n=9) %}{% for i in range(60) %}{% set ns.n = ns.n * ns.n %}"
    "{% endfor %}{{ ns.n }}",
    "replaced": "{% set s = 'xxxxxxxxxx' %}" + "{% set s = s | replace('x', 'xxxxxxxxxx') %}" * 12 + "{{ s }}",
    "replaced by itself": "{% set s = 'xx' %}" + "{% set s = s | replace('x', s) %}" * 12 + "{{ s }}",
    "replaced by method": "{% set s = 'xxxxxxxxxx' %}" + "{% set s = s.replace('', 'xxxxxxxxxx') %}" * 12 + "{{ s }}",
    "joined by itself": "{% set s = 'xx' %}" + "{% set s = s | list | join(s) %}" * 12 + "{{ s }}",
    "joined by method": "{% set s = 'xx' %}" + "{% set s = s.join(s | list) %}" * 12 + "{{ s }}",
    "endless": "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
    "endless output": "{% for i in range(99999) %}" + "much text " * 5_000 + "{% endfor %}",
    "macros that call themselves": "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}"
    "{{ f(60) }}",
    "a macro without an end": "{% macro f(n) %}{{ f(n + 1) }}{% endmacro %}{{ f(0) }}",
    "a macro that doubles": "{% macro f(s, n) %}{% if n %}{{ f(s ~ s, n - 1) }}{% endif %}{% endmacro %}"
    "{{ f('x', 60) }}",
    "doubled by capture": "{% set s = 'x' %}" + "{% set s %}{{ s }}{{ s }}{% endset %}" * 60 + "{{ s }}",
    "namespaces of namespaces": "{% set n = namespace(a=1) %}" + "{% set n = namespace(a=n, b=n) %}" * 60 + "{{ n }}",
    "sorts": "{% for i in range(9999) %}{% for m in range(99999) | sort %}{% endfor %}{% endfor %}",
    "mapped": "{{ range(99999) | map('string') | join(',') | list | map('string') | join(',') * 1000 }}",
    "indented again": "{% set s = '\n\n\n\n' %}" + "{% set s = (s | indent(16)) ~ (s | indent(16)) %}" * 40 + "{{ s }}",
    "loop controls": "{% for i in range(99999) %}{% for j in range(99999) %}{% continue %}{% endfor %}{% endfor %}",
    "deep JSON": "{% set ns = namespace(l=[]) %}{% for i in range(90000) %}{% set ns.l = [ns.l] %}{% endfor %}"
    "{{ ns.l | tojson(indent=16) }}",
    "compared": "{% set l = [1] %}{% set m = [1] %}"
    + "{% set l = [l, l] %}{% set m = [m, m] %}" * 60
    + "{% if l == m %}x{% endif %}",
}
"""What is read without offence, and must never render here."""

CHILD = """
import json, resource, sys
from warmroute.chat_template.verdict import judge
resource.setrlimit(resource.RLIMIT_AS, (%d, %d))
resource.setrlimit(resource.RLIMIT_CPU, (4, 4))
source = sys.stdin.buffer.read()
try:
    template, verdict = judge({"chat_template.jinja": source})
except Exception as error:
    print(type(error).__name__, str(error)[:200])
else:
    print("cheap" if verdict.cheap else "dear")
"""


def judged(source: str) -> tuple[str, float]:
    """What becomes of a template in a process of its own, and how long it takes."""
    begun = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-c", CHILD % (MEMORY_BYTES, MEMORY_BYTES)],
        input=source.encode(),
        capture_output=True,
        timeout=110,
        check=False,
    )
    seconds = time.monotonic() - begun
    return done.stdout.decode().strip() or f"died {done.returncode}", seconds


@pytest.mark.parametrize("source", REFUSED.values(), ids=REFUSED)
def test_what_no_model_needs_is_refused_before_it_is_run(source: str) -> None:
    used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    begun = time.process_time()
    with pytest.raises(ChatTemplateError):
        check(source)
    assert time.process_time() - begun < 5
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - used < 400_000  # KiB


@pytest.mark.parametrize("source", LEGAL.values(), ids=LEGAL)
def test_what_is_legal_and_grows_is_never_called_cheap(source: str) -> None:
    assert why_dear(check(source), {}) is not None
    outcome, seconds = judged(source)
    assert "cheap" not in outcome
    assert seconds < SECONDS * 3


def test_a_chat_template_as_they_are_is_cheap_and_known_again() -> None:
    template, verdict = judge({"chat_template.jinja": CHATML.encode()})
    assert verdict.cheap
    assert Verdict.from_fields(json.loads(json.dumps(verdict.to_fields()))) == verdict
    again, known = judge({"chat_template.jinja": CHATML.encode()}, verdict)
    assert known == verdict
    chat = [{"role": "user", "content": "é"}]
    assert again.render(chat) == template.render(chat) == "<user>é</>"


def test_what_a_model_lacks_is_told_from_what_is_refused() -> None:
    with pytest.raises(MissingTemplateError):
        judge({"config.json": b"{}"})
    with pytest.raises(ChatTemplateError, match="bytes"):
        judge({"config.json": b" " * 17_000_000})
    with pytest.raises(ChatTemplateError, match="special token"):
        judge({"chat_template.jinja": b"x", "special_tokens_map.json": b'{"bos_token": "%b"}' % (b"x" * 2_000)})
    with pytest.raises(RefusedTemplateError, match="line 2: the function lipsum"):
        judge({"chat_template.jinja": b"x\n{{ lipsum(1) }}"})


def real_templates() -> list[Path]:
    spec = find_spec("trl")
    folders = [] if spec is None else spec.submodule_search_locations or []
    fixtures = os.environ.get("WARMROUTE_TEST_FIXTURES")
    more = sorted(Path(fixtures).rglob("*.jinja")) if fixtures else []
    return sorted(path for folder in folders for path in Path(folder).glob("chat_templates/*.jinja")) + more


def test_templates_of_models_are_taken_and_most_families_are_cheap() -> None:
    paths = real_templates()
    if not paths:
        pytest.skip("the package trl is missing; pip install --no-deps trl==1.16.0")
    cheap = {path.stem for path in paths if why_dear(check(path.read_text()), {"bos_token": "<s>"}) is None}
    assert cheap >= {"gemma3", "llama3", "llama3_1", "phi3", "qwen2_5", "qwen3", "qwen3_vl"} & {p.stem for p in paths}


# --- any template -----------------------------------------------------------------------------------------------------

NAMES = ("m", "s", "x", "messages", "tools", "ns.a", "m.content", "messages[0].content", "loop.index0", "m.tool_calls")
TEXTS = ("''", "'x'", "'</think>'", "', '", "'\\n'", "7", "0", "true", "none", "[1, 2]", "{'a': 'b'}")
FILTERS = ("trim", "upper", "length", "string", "tojson", "list", "join(',')", "replace('a', 'bb')", "first", "last")
FILTERS += ("default('y')", "items", "map('upper')", "tojson(indent=4)", "indent(4)", "dictsort", "reverse | list")
METHODS = ("strip()", "split('a')", "get('content')", "items()", "replace('', 'b')", "startswith('a')", "upper()")


def expression(rng: random.Random, depth: int) -> str:
    choice = rng.randrange(9 if depth else 2)
    inner = depth - 1
    if choice == 0:
        return rng.choice(NAMES)
    if choice == 1:
        return rng.choice(TEXTS)
    left = expression(rng, inner)
    if choice in (2, 3):
        return f"({left}) | {rng.choice(FILTERS)}"
    if choice == 4:
        return f"({left}).{rng.choice(METHODS)}"
    if choice == 5:
        return f"({left})[{rng.choice(('0', '1:', '::-1', '-1', ':2'))}]"
    if choice == 6:
        return f"[{left}, {expression(rng, inner)}]"
    operator = rng.choice(("+", "~", "==", "in", "and", "or", "-", "*"))
    return f"({left}) {operator} ({expression(rng, inner)})"


def statements(rng: random.Random, depth: int) -> str:
    made = []
    for _ in range(rng.randint(1, 4)):
        kind = rng.randrange(8 if depth else 4)
        value = expression(rng, 2)
        if kind < 2:
            made.append(f"{{{{ {value} }}}}")
        elif kind == 2:
            made.append(f"{{% set {rng.choice(('s', 'x', 'ns.a'))} = {value} %}}")
        elif kind == 3:
            made.append(rng.choice(("text", "{{ f(s) }}", "{# comment #}", "\n")))
        elif kind == 4:
            made.append(
                f"{{% if {value} %}}{statements(rng, depth - 1)}{{% else %}}{statements(rng, depth - 1)}{{% endif %}}"
            )
        elif kind == 5:
            made.append(f"{{% set s %}}{statements(rng, depth - 1)}{{% endset %}}")
        else:
            over = rng.choice(("messages", "m.tool_calls or []", value, "range(3)", "range(messages | length)"))
            made.append(f"{{% for m in {over} %}}{statements(rng, depth - 1)}{{% endfor %}}")
    return "".join(made)


def template_of(rng: random.Random) -> str:
    start = "{% set ns = namespace(a='') %}{% set s = 'x' %}{% set x = 1 %}"
    macro = f"{{% macro f(s) %}}{statements(rng, 1)}{{% endmacro %}}".replace("{{ f(s) }}", "")
    return start + macro + statements(rng, 2)


PIECES = ("{{", "}}", "{%", "%}", "{#", "'", "(", "[", "|", "é", "\x00", "*", "**")


def mutated(rng: random.Random, source: str) -> str:
    for _ in range(rng.randint(0, 3)):
        place = rng.randrange(len(source) + 1)
        source = source[:place] + rng.choice(PIECES) + source[place:]
    return source


CHATS: list[list[dict[str, Any]]] = [
    [{"role": "user", "content": "a" * 500}] * 20,
    [{"role": "user", "content": "\n" * 300 + "a b" * 100, "tool_calls": [{"a": ["x"] * 30}]}] * 10,
]


@pytest.mark.timeout(3_000)
def test_whatever_a_template_says_what_is_cheap_is_cheap() -> None:
    """A template that is called cheap never makes more of a chat than is said; none makes the check do more than
    refuse. A fifth of WARMROUTE_FUZZ_INPUTS, since to parse one takes Jinja 5 ms; a failure names the seed."""
    cheap = 0
    for seed in range(max(1, INPUTS // 5)):
        rng = random.Random(seed)
        source = template_of(rng)
        if rng.random() < 0.3:
            source = mutated(rng, source)
        try:
            tree = check(source)
        except ChatTemplateError:
            continue
        if seed % 10 or why_dear(tree, {}) is not None:
            continue
        try:
            template = ChatTemplate(source, found=ChatTemplate("x").findings)
        except ChatTemplateError:
            continue
        cheap += 1
        for chat in CHATS:
            before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
            begun = time.process_time()
            try:
                template.render([dict(message) for message in chat])
            except ChatTemplateError as error:
                if isinstance(error.__cause__, EndlessTemplateError):
                    pytest.fail(f"seed {seed}: {source}")
            assert time.process_time() - begun < 5, (seed, source)
            assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 300_000, (seed, source)
    assert cheap or INPUTS < 5_000
