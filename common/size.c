/* common/size.c - see size.h */
#include "common/size.h"

#include "common/err.h"
#include "common/number.h"

#include <ctype.h>
#include <string.h>

int size_parse(const char *text, int64_t *bytes, struct ddp_err *err)
{
    static const char letters[] = "KMGT";
    const char *end, *unit;
    double n;
    if (!number_plain(text, &n, &end))
        return err_set(err, "'%.40s' is not a size: write 8192, 512M, 64G or 1.5T", text);
    unit = *end ? strchr(letters, toupper((unsigned char)*end)) : NULL;
    if (unit) {
        end++;
        end += strcmp(end, "B") == 0 ? 1 : strcmp(end, "iB") == 0 ? 2 : 0;
        n *= (double)(INT64_C(1) << 10 * (unit - letters + 1)); /* without libm */
    }
    if (*end || !(n < 0x1p62))
        return err_set(err, "'%.40s' is not a size: write 8192, 512M, 64G or 1.5T", text);
    *bytes = (int64_t)(n + 0.5);
    return 0;
}
