#!/usr/bin/env bash
# sizes.sh ROOT: no .c over 900 lines, no function over 120; only main.c files may exit()
set -euo pipefail
cd "$1"
bad=0
while read -r file; do
    n=$(wc -l <"$file")
    [ "$n" -le 900 ] || { echo "$file: $n lines"; bad=1; }
    awk -v f="$file" '/^[a-zA-Z_].*\(/ { name = $0 } /^\{/ { start = FNR }
        /^\}/ { if (start && FNR - start > 120) { print f ": " FNR - start " lines: " name; found = 1 }; start = 0 }
        END { exit found }' "$file" || bad=1
    case $file in
    */main.c) ;;
    *) if grep -nE '(^|[^_a-zA-Z])exit\(' "$file" | grep -vE '^\s*[0-9]+:\s*(/?\*|//)'; then
           echo "$file: only main.c files may call exit()"; bad=1
       fi ;;
    esac
done < <(find common include rendezvous launcher worker -name '*.[ch]' | sort)
exit $bad
