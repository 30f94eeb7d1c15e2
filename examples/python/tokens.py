#!/usr/bin/env python3
"""tokens.py - a text as tokens for ddp-train --model gpt2, and back

  tokens.py TEXT... -o tokens.bin    with GPT-2's tokeniser (module tiktoken, or transformers)
  tokens.py TEXT... -o tokens.bin --bytes    each byte a token; needs no module
  ddp-train ... --sample 100 | tail -1 | tokens.py --decode
  ddp-train ... --sample 100 --prompt "$(echo Once upon a time | tokens.py --print)"

The file has llm.c's header: 256 numbers of 32 bits (20240520, 1, how many tokens), then the
tokens of 16 bits; with --wide (20240801, 7) of 32.
"""
import argparse
import array
import struct
import sys


def gpt2():
    """Functions from text to numbers and back."""
    try:
        import tiktoken
        coder = tiktoken.get_encoding("gpt2")
        return coder.encode_ordinary, coder.decode
    except ImportError:
        pass
    try:
        from transformers import GPT2TokenizerFast
        coder = GPT2TokenizerFast.from_pretrained("gpt2")
        return coder.encode, coder.decode
    except ImportError:
        sys.exit("tokens.py: neither module tiktoken nor transformers is here: try --bytes")


def main():
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("texts", nargs="*", metavar="TEXT", help="files; - is stdin")
    p.add_argument("-o", "--output", default="tokens.bin")
    p.add_argument("--bytes", action="store_true", help="each byte is a token")
    p.add_argument("--wide", action="store_true", help="tokens of 32 bits")
    p.add_argument("--print", action="store_true", help="write numbers to stdout, no file")
    p.add_argument("--decode", action="store_true", help="numbers from stdin to a text")
    a = p.parse_args()
    if a.decode:
        numbers = list(map(int, sys.stdin.read().split()))
        sys.stdout.buffer.write(bytes(numbers) if a.bytes else gpt2()[1](numbers).encode())
        return
    encode = None if a.bytes else gpt2()[0]
    tokens = array.array("I" if a.wide else "H")
    for name in a.texts or ["-"]:
        with open(0 if name == "-" else name, "rb") as f:
            data = f.read()
        tokens.extend(data if a.bytes else encode(data.decode("utf-8", "replace")))
    if a.print:
        print(*tokens)
        return
    if sys.byteorder == "big":
        tokens.byteswap()
    with open(a.output, "wb") as f:
        f.write(struct.pack("<256i", *((20240801, 7) if a.wide else (20240520, 1)), len(tokens),
                            *[0] * 253))
        tokens.tofile(f)
    print(f"{a.output}: {len(tokens):,} tokens, the largest {max(tokens, default=0)}")


main()
