#!/usr/bin/env python3
"""man.py PAGE.1.md VERSION: a manual page as roff, on stdout

The pages are written in the part of scdoc's language that also reads as Markdown:

    name(1)                   the first line
    # HEADING, ## Heading
    *bold*, _underlined_, `as it is`, \\_ for a character that means nothing
    a paragraph, and indented by a tab below it what it is about
    ``` ... ```               an example, kept as it is

Anything else of Markdown (lists, tables, links) is refused, not passed through.
"""
import pathlib
import re
import sys

INLINE = re.compile(r"\\(?P<escaped>.)|`(?P<literal>[^`]+)`|(?P<bold>\*)|"
                    r"(?P<under>(?<![A-Za-z0-9])_|_(?![A-Za-z0-9]))|(?P<plain>.)", re.S)
REFUSED = re.compile(r"[-*+] |\d+\. |\||>|\[[^]]*\]\(")


def literal(text):
    text = text.replace("\\", "\\e").replace("-", "\\-")
    text = re.sub(r"[^\x00-\x7f]", lambda c: f"\\[u{ord(c[0]):04X}]", text)
    return re.sub(r"(?m)^(?=[.'])", r"\\&", text)


def inline(text, where):
    out, font = "", None
    for match in INLINE.finditer(text):
        kind = match.lastgroup
        if kind in ("bold", "under"):
            wanted = {"bold": "B", "under": "I"}[kind]
            if font not in (None, wanted):
                sys.exit(f"{where}: '{match.group()}' inside another mark: {text!r}")
            font = None if font else wanted
            out += f"\\f{font or 'R'}"
        elif kind == "literal":
            out += literal(match["literal"])
        else:
            out += literal(match[kind])
    if font:
        sys.exit(f"{where}: a mark has no end: {text!r}")
    return re.sub(r"(?m)^(?=[.'])", r"\\&", out)


class Page:
    def __init__(self, path, version):
        self.path, self.out, self.deep = path, [], False
        lines = pathlib.Path(path).read_text(encoding="utf-8").split("\n")
        title = re.fullmatch(r"([\w-]+)\((\d)\)", lines[0])
        if not title:
            sys.exit(f"{path}:1: the first line is name(section)")
        self.put(f'.TH "{title[1].upper()}" {title[2]} "" "ddprun {version}"', ".nh", ".ad l")
        self.read(lines)

    def put(self, *lines):
        self.out.extend(lines)

    def indent(self, deep):
        if deep != self.deep:
            self.put(".RS 4" if deep else ".RE")
            self.deep = deep

    def paragraph(self, lines, first, below):
        """`below`: of the paragraph right above it."""
        self.indent(lines[0].startswith("\t"))
        for i, line in enumerate(lines):
            where = f"{self.path}:{first + i}"
            if line.startswith("\t") != self.deep or REFUSED.match(line.lstrip()):
                sys.exit(f"{where}: not in the language of the manual: {line!r}")
        text = inline("\n".join(line.strip() for line in lines), f"{self.path}:{first}")
        self.put(*([] if below else [".PP"]), text)

    def example(self, lines):
        self.indent(False)
        self.put(".PP", ".RS 4", ".nf", literal("\n".join(lines)), ".fi", ".RE")

    def read(self, lines):
        i, below = 1, False
        while i < len(lines):
            line = lines[i]
            heading = re.fullmatch(r"(##?) (.+)", line)
            end = i + 1
            if line == "```":
                end = lines.index("```", i + 1) + 1
                self.example(lines[i + 1:end - 1])
            elif heading:
                self.indent(False)
                self.put(f".S{'H' if len(heading[1]) == 1 else 'S'} {literal(heading[2])}")
            elif line.strip():
                while end < len(lines) and lines[end].strip() and lines[end] != "```" and \
                        lines[end].startswith("\t") == line.startswith("\t"):
                    end += 1
                self.paragraph(lines[i:end], i + 1, below)
            below = bool(line.strip()) and not heading and line != "```"
            i = end
        self.indent(False)


if __name__ == "__main__":
    print("\n".join(Page(*sys.argv[1:3]).out))
