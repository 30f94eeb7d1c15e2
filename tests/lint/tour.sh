#!/usr/bin/env bash
# tour.sh ROOT: every path that the READMEs and doc/*.md name in backticks exists
set -euo pipefail
cd "$1"
bad=0 seen=0
for doc in README.md launcher/README.md doc/*.md; do
    while read -r path; do
        seen=$((seen + 1))
        compgen -G "$path" >/dev/null || { echo "$doc names $path, which is not there"; bad=1; }
    done < <(grep -oE '`(common|include|rendezvous|launcher|worker|tests|bench|doc|tools|templates|examples|spank)/[A-Za-z0-9_./*-]*`' "$doc" | tr -d '`' | sort -u)
done
[ $seen -gt 10 ] || { echo "only $seen paths seen"; exit 1; }
exit $bad
