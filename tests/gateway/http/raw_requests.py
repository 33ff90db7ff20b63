"""Raw requests: a corpus of what has smuggled requests past other proxies, and a source of damaged ones."""

from __future__ import annotations

from random import Random

HOST = b"Host: gateway\r\n"
BODY = b"hello"


def post(headers: bytes, body: bytes = BODY, *, target: bytes = b"/v1/x", version: bytes = b"1.1") -> bytes:
    return b"POST %b HTTP/%b\r\n%b%b\r\n%b" % (target, version, HOST, headers, body)


CHUNKED_BODY = b"5\r\nhello\r\n0\r\n\r\n"
NEXT = b"GET /admin HTTP/1.1\r\nHost: gateway\r\n\r\n"

VALID = {
    "length": post(b"Content-Length: 5\r\n"),
    "chunked": post(b"Transfer-Encoding: chunked\r\n", CHUNKED_BODY),
    "chunked, mixed case": post(b"tRANSFER-eNCODING: Chunked\r\n", CHUNKED_BODY),
    "chunk extension": post(b"Transfer-Encoding: chunked\r\n", b'5;a="b"\r\nhello\r\n0\r\n\r\n'),
    "trailers": post(b"Transfer-Encoding: chunked\r\n", b"5\r\nhello\r\n0\r\nX-Sum: 1\r\n\r\n"),
    "a trailer that frames": post(b"Transfer-Encoding: chunked\r\n", b"5\r\nhello\r\n0\r\nX-Length: 40\r\n\r\n"),
    "pipelined": post(b"Content-Length: 5\r\n") + NEXT,
    "no body": NEXT,
    "old": post(b"Content-Length: 5\r\n", version=b"1.0"),
    "expect": post(b"Expect: 100-continue\r\nContent-Length: 5\r\n"),
    "leading zeros": post(b"Content-Length: 0005\r\n"),
    "spaces around the value": post(b"Content-Length: \t 5 \t\r\n"),
    "body that looks like a request": post(b"Content-Length: %d\r\n" % len(NEXT), NEXT),
}
"""Name -> one or two proper requests."""

SMUGGLING = {
    "length and chunked": post(b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n", b"0\r\n\r\n" + NEXT),
    "chunked and length": post(b"Transfer-Encoding: chunked\r\nContent-Length: 5\r\n", b"0\r\n\r\n" + NEXT),
    "two lengths": post(b"Content-Length: 5\r\nContent-Length: 6\r\n"),
    "the same length twice": post(b"Content-Length: 5\r\nContent-Length: 5\r\n"),
    "lengths in one value": post(b"Content-Length: 5, 5\r\n"),
    "signed length": post(b"Content-Length: +5\r\n"),
    "negative length": post(b"Content-Length: -5\r\n"),
    "hexadecimal length": post(b"Content-Length: 0x5\r\n"),
    "length with an underscore": post(b"Content-Length: 1_0\r\n"),
    "empty length": post(b"Content-Length: \r\n"),
    "length beyond 64 bits": post(b"Content-Length: 18446744073709551621\r\n"),
    "length in other digits": post("Content-Length: \u0665\r\n".encode()),
    "two codings": post(b"Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n", CHUNKED_BODY),
    "coding list": post(b"Transfer-Encoding: gzip, chunked\r\n", CHUNKED_BODY),
    "chunked not last": post(b"Transfer-Encoding: chunked, identity\r\n", CHUNKED_BODY),
    "chunked twice": post(b"Transfer-Encoding: chunked, chunked\r\n", CHUNKED_BODY),
    "misspelt coding": post(b"Transfer-Encoding: xchunked\r\n", CHUNKED_BODY),
    "quoted coding": post(b'Transfer-Encoding: "chunked"\r\n', CHUNKED_BODY),
    "coding with a vertical tab": post(b"Transfer-Encoding: \x0bchunked\r\n", CHUNKED_BODY),
    "coding with NUL": post(b"Transfer-Encoding: chunked\x00\r\n", CHUNKED_BODY),
    "space before the colon": post(b"Transfer-Encoding : chunked\r\n", CHUNKED_BODY),
    "tab before the colon": post(b"Transfer-Encoding\t: chunked\r\n", CHUNKED_BODY),
    "space before the name": post(b" Transfer-Encoding: chunked\r\n", CHUNKED_BODY),
    "folded coding": post(b"Transfer-Encoding:\r\n chunked\r\n", CHUNKED_BODY),
    "folded header": post(b"X: a\r\n Content-Length: 5\r\n"),
    "bare LF in the head": post(b"X: a\nContent-Length: 5\r\n"),
    "bare CR in a value": post(b"X: a\rTransfer-Encoding: chunked\r\n", CHUNKED_BODY),
    "bare LF lines": b"POST / HTTP/1.1\nHost: gateway\nContent-Length: 5\n\nhello",
    "NUL in a value": post(b"X: a\x00b\r\nContent-Length: 5\r\n"),
    "NUL in a name": post(b"Content\x00-Length: 5\r\n"),
    "header without a colon": post(b"Content-Length 5\r\n"),
    "header without a name": post(b": 5\r\nContent-Length: 5\r\n"),
    "chunked in HTTP/1.0": post(b"Transfer-Encoding: chunked\r\n", CHUNKED_BODY, version=b"1.0"),
    "negative chunk": post(b"Transfer-Encoding: chunked\r\n", b"-1\r\nhello\r\n0\r\n\r\n"),
    "chunk size in 0x": post(b"Transfer-Encoding: chunked\r\n", b"0x5\r\nhello\r\n0\r\n\r\n"),
    "chunk size beyond 64 bits": post(b"Transfer-Encoding: chunked\r\n", b"10000000000000005\r\nhello\r\n0\r\n\r\n"),
    "chunk longer than said": post(b"Transfer-Encoding: chunked\r\n", b"4\r\nhello\r\n0\r\n\r\n"),
    "chunk ended by LF": post(b"Transfer-Encoding: chunked\r\n", b"5\nhello\n0\n\n"),
    "chunk size with a space before": post(b"Transfer-Encoding: chunked\r\n", b" 5\r\nhello\r\n0\r\n\r\n"),
    "no host": b"GET / HTTP/1.1\r\n\r\n",
    "two hosts": b"GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n",
    "no version": b"GET /\r\nHost: gateway\r\n\r\n",
    "HTTP/0.9": b"GET / HTTP/0.9\r\nHost: gateway\r\n\r\n",
    "HTTP/2.0": b"GET / HTTP/2.0\r\nHost: gateway\r\n\r\n",
    "HTTP/1.10": b"GET / HTTP/1.10\r\nHost: gateway\r\n\r\n",
    "HTTP/2 preface": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "tab in the request line": b"GET\t/\tHTTP/1.1\r\nHost: gateway\r\n\r\n",
    "space in the target": b"GET /a b HTTP/1.1\r\nHost: gateway\r\n\r\n",
    "CR in the target": b"GET /a\rb HTTP/1.1\r\nHost: gateway\r\n\r\n",
    "authority as target": b"GET gateway:80 HTTP/1.1\r\nHost: gateway\r\n\r\n",
    "CONNECT": b"CONNECT engine:80 HTTP/1.1\r\nHost: engine:80\r\n\r\n",
    "websocket": b"GET / HTTP/1.1\r\nHost: a\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n" + NEXT,
}
"""Name -> what must be refused, whatever it hides."""

PIECES = [
    *(b"\r\n", b"\r", b"\n", b"\r\n\r\n", b"\x00", b" ", b"\t", b":", b",", b"0", b"5", b"-1", b"\xff", b"\x0b"),
    *(b"Content-Length: 5\r\n", b"Content-Length: 0\r\n", b"Transfer-Encoding: chunked\r\n", b"chunked", b"identity"),
    *(b"HTTP/1.1", b"HTTP/1.0", b"Connection: close\r\n", b"Connection: keep-alive, content-length\r\n", b"Expect: "),
    *(b"100-continue", b"Upgrade: h2c\r\nConnection: upgrade\r\n", b"0\r\n\r\n", b"GET /", b"HEAD /", b"A" * 300),
]


def damaged(random: Random) -> bytes:
    """A request of the corpus, or two, damaged in one to four places."""
    corpus = [*VALID.values(), *SMUGGLING.values()]
    data = bytearray(random.choice([*VALID.values()] if random.random() < 0.7 else corpus))
    if random.random() < 0.2:
        data += random.choice(corpus)
    for _ in range(random.randint(1, 4)):
        at = random.randrange(len(data) + 1)
        match random.randrange(5):
            case 0:
                data[at:at] = random.choice(PIECES)
            case 1:
                del data[at : at + random.randint(1, 8)]
            case 2:
                data[at : at + 1] = bytes([random.randrange(256)])
            case 3:
                data[at:at] = data[max(0, at - random.randint(1, 30)) : at]
            case 4:
                other = random.choice(corpus)
                data[at:] = other[random.randrange(len(other)) :]
    return bytes(data)
