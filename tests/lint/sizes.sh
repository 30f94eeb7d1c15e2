#!/usr/bin/env bash
# sizes.sh ROOT: no .c over 900 lines, no function over 120; only main.c files may call exit();
# only common/affinity.c sched_getaffinity()
set -euo pipefail
cd "$1"
find common include rendezvous launcher worker -name '*.[ch]' -print0 | sort -z | xargs -0 awk '
    function fault(text) { print FILENAME ": " text; bad = 1 }
    FNR == 1 { start = 0; is_main = FILENAME ~ /(^|\/)main\.c$/ }
    FNR == 901 { fault("more than 900 lines") }
    /^[a-zA-Z_].*\(/ { name = $0 }
    /^\{/ { start = FNR }
    /^\}/ { if (start && FNR - start > 120) fault(FNR - start " lines: " name); start = 0 }
    !is_main && /(^|[^_a-zA-Z])exit\(/ && !/^[ \t]*(\/?\*|\/\/)/ {
        fault(FNR ": only main.c files may call exit()")
    }
    /sched_getaffinity\(/ && FILENAME != "common/affinity.c" {
        fault(FNR ": call affinity_get(), which knows machines with more than 1,024 CPUs")
    }
    END { exit bad }'
