# ruff: noqa: RUF001  (characters that look alike are the point)
"""Texts on which a faster encoder must agree with the reference before it is used."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from random import Random
from typing import Final

_SEED: Final = 1
_MIXTURES: Final = 200
_TOKENS: Final = 3_000

FRAGMENTS: Final = (
    "The quick brown fox jumps over the lazy dog.",
    "Grüße aus Köln, naïve café, Ærøskøbing, Đặng Thùy Trâm, İstanbul ıǅ ﬁn ﬆ",
    "Съешь же ещё этих мягких французских булок. Ξεσκεπάζω την ψυχοφθόρα βδελυγμία.",
    "אבגד שלום עולם", "مرحبا بالعالم ١٢٣٤ ۱۲۳", "नमस्ते दुनिया १२३ क्‍ष", "สวัสดีชาวโลก ๑๒๓", "გამარჯობა მსოფლიო",
    "你好,世界。漢字かなカナ㍿", "안녕하세요 세계 각", "བོད་སྐད", "ሰላም ልዑል", "ᚠᛇᚻ", "𝔘𝔫𝔦𝔠𝔬𝔡𝔢 𠜎𠜱", "ʰʷ ˈaɪ",
    "🙂🙃 👩‍👩‍👧‍👦 🏳️‍🌈 🇩🇪🇯🇵 👍🏽 ❤️ ☃", "a\u0301e\u0308o\u0302\u0301 \u0301\u0300 \u200d\ufe0f \u20e3 1\ufe0f\u20e3",
    "0123456789 3.14159 1,000,000 007 0x1F 1e-9 ²³¼½ Ⅷ ⅻ ① ㊿ 一二三 ४२",
    "I'm you're he's we'll they've I'd don't I'M YOU'RE HE'S it'ſ 'tis ''s 's't rock'n'roll",
    "  two   three    four\t\ttabs \t mixed\t ", "\n", "\n\n", "\r\n\r\n", " \n \n", "\n  indented", "trailing   ",
    "\u00a0\u00a0x\u2003\u2009y\u3000z\u2028\u2029\u0085\u000b\u000c\u001c\u001f end",
    "\ufeffBOM \u200bzero\u200c width",
    "\x00\x01\x02\x03\x04\x05\x06\x07\x08\x0e\x13\x14\x16\x1d\x7f\x80\x9f",
    "\u202eright\u202c \ue000 \U000f0000 \U00050000 \U0010ffff",
    "def f(x: int) -> int:\n    return {k: v**2 for k, v in x.items() if v != 0}  # e.g. \"a\\n\"\n",
    "for (int i = 0; i < n; ++i) { a[i] <<= 1; }\n\n\t// ---- ==== ****\n", "SELECT * FROM t WHERE a='b';--",
    '{"name": "f", "arguments": {"x": [1, 2.5, null, true], "y": "\\u00e9"}}', "<p class=\"x\">a &amp; b</p>",
    "https://example.com/a/b?c=d&e=f#g user@example.com /usr/local/bin/python3.11 C:\\Windows\\x.dll",
    "+++ b/file.py\n@@ -1,3 +1,4 @@\n-old\n+new\n", "$ ls -la | grep '^d' && echo \"done\" >> out.txt",
    "\\frac{a}{b} \\le \\sum_{i=1}^n",
    "<|im_end", "im_start|>", "</s>", "<s>", "[INST]", "<|", "|>", "<think>", "<unk>", "<0x0A>", "▁x", "Ġx Ċ", "##ing",
    "CamelCaseHTTPServer snake_case kebab-case SCREAMING ALLCAPSword wordALLCAPS",
    "...!?!?--- *** ~~~ ```` \"\"\" ''' ((()))",
    "a" * 3_000, "ab" * 1_500, " " * 3_000, "\n" * 1_000, " \n" * 500, "-" * 2_000,
    "漢" * 700, "1" * 1_000, "'" * 500, "é" * 500,
    "pneumonoultramicroscopicsilicovolcanoconiosis" * 20, "x",
)  # fmt: skip

CALIBRATION_TEXT: Final = (
    "The gateway routes each prompt to the worker that holds most of it, by keys of token blocks (64 at a time).\n"
    "    for block in blocks[1:]:\n        key = digest(block, seed=key)  # 12,345 times\n"
) * 100
"""Prose and code, 19,000 characters."""


def probe_texts(vocabulary: Iterable[bytes]) -> Iterator[str]:
    """Each fragment, mixtures of them with and without blanks between, and tokens of the vocabulary side by side."""
    yield from FRAGMENTS
    random = Random(_SEED)
    short = [fragment for fragment in FRAGMENTS if len(fragment) < 200]
    for _ in range(_MIXTURES):
        parts = random.choices(short, k=4)
        yield random.choice(["", " ", "\n", "  ", "1"]).join(
            part[random.randrange(len(part)) :][: random.randint(1, 40)] for part in parts
        )
    tokens = sorted(vocabulary)
    sample = random.sample(tokens, min(_TOKENS, len(tokens)))
    for start in range(0, len(sample), 10):
        yield b"".join(sample[start : start + 10]).decode("utf-8", "ignore")
