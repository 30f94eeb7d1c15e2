#!/usr/bin/env python3
"""packaging.py ROOT VERSION: recipes parse, and name this version and options that there are."""
import ast
import pathlib
import re
import sys

root, version = pathlib.Path(sys.argv[1]), sys.argv[2]
faults = []


def text_of(name):
    return (root / name).read_text(encoding="utf-8")


spack, conda = text_of("packaging/spack/package.py"), text_of("packaging/conda/meta.yaml")
ast.parse(spack)
ast.parse(text_of("tools/release"))
try:
    import yaml
    recipe = yaml.safe_load(re.sub(r"\{\{.*?\}\}", "x", conda))
    if recipe["package"]["version"] != version:
        faults.append(f"packaging/conda/meta.yaml is for {recipe['package']['version']}")
except ImportError:
    print("no module yaml: the conda recipe is not parsed")

options = set(re.findall(r"option\('(\w+)'", text_of("meson_options.txt"))) | {
    "werror", "prefer_static", "b_pie"}
for name in ("packaging/spack/package.py", "packaging/conda/meta.yaml", "tools/release", "doc/install.md"):
    unknown = set(re.findall(r"-D([a-z_]+)=", text_of(name))) - options
    faults += [f"{name}: -D{option} is no option" for option in sorted(unknown)]
for name in ("packaging/apptainer.def", "doc/install.md"):
    others = set(re.findall(r"ddprun[-_](\d+\.\d+\.\d+)", text_of(name))) - {version}
    faults += [f"{name}: names version {other}" for other in sorted(others)]
sys.exit("\n".join(faults) or 0)
