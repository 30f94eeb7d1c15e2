"""embed.py OUTPUT FOLDER FILE...: files below FOLDER/ as the C table embedded_FOLDER (common/embedded.h)"""
import sys


def literal(content):
    """As C strings, a line each; octal for what is not plain ASCII."""
    out = []
    for line in content.splitlines(keepends=True):
        out.append('"' + "".join(
            "\\n" if c == 10 else f"\\{chr(c)}" if chr(c) in '"\\' else
            chr(c) if 32 <= c < 127 and c != 63 else f"\\{c:03o}"
            for c in line) + '"')
    return "\n     ".join(out) or '""'


output, folder, *paths = sys.argv[1:]
rows = []
for name, path in sorted((p.rpartition(folder + "/")[2], p) for p in paths):
    with open(path, "rb") as f:
        content = f.read()
    rows.append(f'    {{"{name}",\n     {literal(content)}, {len(content)}}},\n')
with open(output, "w", encoding="ascii") as f:
    f.write('/* made by tools/embed.py */\n#include "common/embedded.h"\n\n#include <stddef.h>\n\n'
            f"const struct embedded embedded_{folder}[] = {{\n" + "".join(rows) + "    {NULL, NULL, 0}};\n")
