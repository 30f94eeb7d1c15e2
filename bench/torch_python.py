"""The Python with PyTorch, for benchmarks that run beside it."""
import os
import subprocess
import sys


def torch_python():
    """Its path, from tests/interop/torch-env.sh, which makes it if needed, or ends this program."""
    script = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../tests/interop/torch-env.sh")
    found = subprocess.run([script, "--make"], stdout=subprocess.PIPE, text=True, check=False)
    if found.returncode != 0:
        sys.exit(found.returncode)
    return found.stdout.strip()
