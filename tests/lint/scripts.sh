#!/usr/bin/env bash
# scripts.sh ROOT: a file that names its interpreter can be executed, as documents call it by its name alone
set -euo pipefail
cd "$1"
bad=0
while IFS= read -r file; do
    [[ $file == *.in || -x $file ]] && continue
    echo "$file: begins with #!, and is not executable (chmod +x)"
    bad=1
done < <(grep -rIlm1 --exclude-dir='build*' --exclude-dir=.git '^#!/' . |
         xargs -d '\n' awk 'FNR == 1 { if (/^#!/) print FILENAME; nextfile }')
exit $bad
