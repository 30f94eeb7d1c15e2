#!/usr/bin/env python3
"""packaging.py ROOT VERSION: recipes parse, name this version and options that there are, and set all
that decide by what is installed."""
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

options = dict(re.findall(r"option\('(\w+)', type: '(\w+)'", text_of("meson_options.txt")))
features = {name for name, kind in options.items() if kind == "feature"} - {"blas", "onednn"}  # of bench
options = set(options) | {"prefer_static", "b_pie"}
for name in ("packaging/spack/package.py", "packaging/conda/meta.yaml", "tools/release", "doc/install.md"):
    named = set(re.findall(r"-D([a-z_]+)=", text_of(name)))
    faults += [f"{name}: -D{option} is no option" for option in sorted(named - options)]
    faults += [f"{name}: -D{option} is missing" for option in sorted(features - named)]
for name in ("packaging/apptainer.def", "doc/install.md"):
    others = set(re.findall(r"ddprun[-_](\d+\.\d+\.\d+)", text_of(name))) - {version}
    faults += [f"{name}: names version {other}" for other in sorted(others)]
sys.exit("\n".join(faults) or 0)
