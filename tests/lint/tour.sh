#!/usr/bin/env bash
# tour.sh ROOT: every path that the READMEs and doc/*.md name in backticks exists; the walk of a
# launch in launcher/README.md goes through at most WALK .c files
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
WALK=40
walk=$(sed -n '/^## The walk/,/^## [^T]/p' launcher/README.md | grep -oE '`launcher/[^`]*\.c`' | sort -u | wc -l)
[ "$walk" -gt 10 ] || { echo "only $walk files of the walk seen"; exit 1; }
[ "$walk" -le $WALK ] || { echo "launcher/README.md: the walk goes through $walk files, more than $WALK"; bad=1; }
exit $bad
