"""embed.py OUTPUT FILE...: the files as a C table of their names and texts"""
import sys


def literal(text):
    """As C strings, a line each; octal for what is not plain ASCII."""
    out = []
    for line in text.splitlines(keepends=True):
        out.append('"' + "".join(
            "\\n" if c == 10 else f"\\{chr(c)}" if chr(c) in '"\\' else
            chr(c) if 32 <= c < 127 and c != 63 else f"\\{c:03o}"
            for c in line.encode()) + '"')
    return "\n     ".join(out) or '""'


rows = []
for path in sorted(sys.argv[2:], key=lambda p: p.partition("templates/")[2]):
    with open(path, encoding="utf-8") as f:
        rows.append(f'    {{"{path.rpartition("templates/")[2]}",\n     {literal(f.read())}}},\n')
with open(sys.argv[1], "w", encoding="ascii") as f:
    f.write('/* made by embed.py */\n#include "launcher/tools/script/embedded.h"\n\n'
            "const struct embedded embedded[] = {\n" + "".join(rows) + "};\n\n"
            "const size_t embedded_len = sizeof embedded / sizeof *embedded;\n")
