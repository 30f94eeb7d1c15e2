/* launcher/cli/suggest.c - see suggest.h */
#include "launcher/cli/suggest.h"

#include "common/err.h"
#include "common/mem.h"
#include "launcher/cli/foreign.h"
#include "launcher/cli/options.h"

#include <limits.h>
#include <string.h>

/* Edit distance with transpositions (optimal string alignment); INT_MAX for long words.
 */
static int distance(const char *a, size_t alen, const char *b, size_t blen)
{
    int rows[3][64];
    if (alen >= ARRAY_LEN(rows[0]) || blen >= ARRAY_LEN(rows[0]))
        return INT_MAX;
    for (size_t j = 0; j <= blen; j++)
        rows[0][j] = (int)j;
    for (size_t i = 1; i <= alen; i++) {
        int *row = rows[i % 3];
        const int *above = rows[(i + 2) % 3], *above2 = rows[(i + 1) % 3];
        row[0] = (int)i;
        for (size_t j = 1; j <= blen; j++) {
            int best = above[j - 1] + (a[i - 1] != b[j - 1]);
            best = above[j] + 1 < best ? above[j] + 1 : best;
            best = row[j - 1] + 1 < best ? row[j - 1] + 1 : best;
            if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
                best = above2[j - 2] + 1 < best ? above2[j - 2] + 1 : best;
            row[j] = best;
        }
    }
    return rows[alen % 3][blen];
}

int suggest_option(const char *word, struct ddp_err *err)
{
    const char *name = word + strspn(word, "-"), *best = NULL;
    const struct foreign_name *owner = foreign_owner(word);
    if (owner && name[1])
        return err_set(
            err,
            "'%.80s' is an option of %s: write 'ddprun --as %s%s%s ...' for its "
            "command lines",
            word, owner->name, owner->name, owner->command ? " " : "",
            owner->command ? owner->command : "");
    size_t len = strcspn(name, "="), best_len = 0;
    /* short words are too similar */
    int least = len > 8 ? 4 : len > 4 ? 3 : len > 1 ? 2 : 0;
    for (size_t i = 0; i < options_len; i++) {
        for (const char *p = options[i].names; p && *p; p += strspn(p, " ")) {
            size_t n = strcspn(p, " ");
            int d = n > 1 ? distance(name, len, p, n) : INT_MAX;
            if (d < least) {
                least = d;
                best = p;
                best_len = n;
            }
            p += n;
        }
    }
    if (best)
        return err_set(err,
                       "unknown option '%.80s', did you mean --%.*s? (try ddprun --help)",
                       word, (int)best_len, best);
    return err_set(err, "unknown option '%.80s' (try ddprun --help)", word);
}
