/* launcher/alloc/hosttext.c - see hosttext.h
 *
 * Names are used in an ssh command line: a leading dash and any character that is not
 * valid in a host name are refused here, for hostfiles and -H.
 */
#define LOG_SUBSYS "options"
#include "launcher/alloc/hosttext.h"

#include "common/err.h"
#include "common/log.h"

#include <arpa/inet.h>
#include <ctype.h>
#include <net/if.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define NAME_MAX_LEN 253 /* of a host name, RFC 1123 */
#define SHOWN        96  /* most bytes of a line in a message */

/* A character of UTF-8 takes one column, whatever its bytes. */
static bool starts_column(char c)
{
    return ((unsigned char)c & 0xc0) != 0x80;
}

static int columns(const char *p, const char *end)
{
    int n = 0;
    for (; p < end; p++)
        n += starts_column(*p);
    return n;
}

/* The line and the caret, cut to SHOWN bytes around `at`. */
static void show(const struct host_place *place, const char *at, char *out, size_t size)
{
    const char *from = place->text, *to = place->text + place->len;
    while (to > at && isspace((unsigned char)to[-1])) /* blanks before `at` count */
        to--;
    if (at - from > SHOWN / 2 && to - from > SHOWN)
        from = at - SHOWN / 2;
    while (from < at && !starts_column(*from))
        from++;
    const char *head = from > place->text ? "..." : "", *tail = "";
    if (to - from > SHOWN) {
        to = from + SHOWN;
        tail = "...";
    }
    char line[SHOWN + 1];
    int n = 0;
    for (const char *p = from; p < to; p++)
        line[n++] = (unsigned char)*p < ' ' || *p == 0x7f ? ' ' : *p;
    snprintf(out, size, "\n  %s%.*s%s\n  %*s", head, n, line, tail,
             columns(from, at) + (int)strlen(head) + 1, "^");
}

int host_complain(const struct host_place *place, const char *at, struct ddp_err *err,
                  const char *fmt, ...)
{
    char what[220], shown[2 * SHOWN + 64];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(what, sizeof what, fmt, ap);
    va_end(ap);
    show(place, at, shown, sizeof shown);
    int column = columns(place->text, at) + 1;
    if (place->line == 0)
        return err_set(err, "%.60s: column %d: %s%s", place->source, column, what, shown);
    /* the end of a long path matters more */
    size_t len = strlen(place->source);
    const char *source = len > 100 ? place->source + len - 100 : place->source;
    return err_set(err, "%s:%ld:%d: %s%s", source, place->line, column, what, shown);
}

int host_number(const struct host_place *place, const char *p, const char *end,
                const char *what, int min, int max, int *value, struct ddp_err *err)
{
    long n = 0;
    const char *q = p;
    while (q < end && isdigit((unsigned char)*q) && n <= max)
        n = n * 10 + (*q++ - '0');
    if (p == end)
        return host_complain(place, p, err, "%s is missing its number", what);
    if (q < end || n < min || n > max)
        return host_complain(place, p, err,
                             "%s must be a whole number from %d to %d, not '%.*s'", what,
                             min, max, (int)(end - p > 40 ? 40 : end - p), p);
    *value = (int)n;
    return 0;
}

/* The name or number of an interface, behind the '%' of a link-local address. */
static bool is_zone(const char *p, size_t len)
{
    for (size_t i = 0; i < len; i++) {
        if (!isalnum((unsigned char)p[i]) && !(p[i] && strchr("-._", p[i])))
            return false;
    }
    return len > 0 && len < IF_NAMESIZE;
}

static bool is_v6(const char *p, size_t len)
{
    char text[INET6_ADDRSTRLEN + 32];
    struct in6_addr a;
    const char *zone = memchr(p, '%', len);
    size_t n = zone ? (size_t)(zone - p) : len;
    if (n >= sizeof text || (zone && !is_zone(zone + 1, len - n - 1)))
        return false;
    memcpy(text, p, n);
    text[n] = '\0';
    return inet_pton(AF_INET6, text, &a) == 1;
}

static bool is_v4(const char *p, size_t len)
{
    char text[INET_ADDRSTRLEN];
    struct in_addr a;
    if (len >= sizeof text)
        return false;
    memcpy(text, p, len);
    text[len] = '\0';
    return inet_pton(AF_INET, text, &a) == 1;
}

bool host_is_address(const char *name, size_t len)
{
    return is_v4(name, len) || is_v6(name, len);
}

/* Check the characters of a name; hostlist.c checks brackets and their contents. */
static int check_name(const struct host_place *place, struct host_entry *e,
                      struct ddp_err *err)
{
    const char *p = e->host, *end = p + e->host_len;
    bool inside = false, only_numeric = true;
    if (p == end)
        return host_complain(place, p, err, "a host name is missing here");
    if (*p == '-' || *p == '.')
        return host_complain(place, p, err, "a host name cannot begin with '%c'", *p);
    if (e->host_len > NAME_MAX_LEN && !memchr(p, '[', e->host_len))
        return host_complain(place, p, err, "a name of %zu characters; %d at most",
                             e->host_len, NAME_MAX_LEN);
    for (; p < end; p++) {
        inside = *p == '[' || (inside && *p != ']');
        if (!isdigit((unsigned char)*p) && *p != '.')
            only_numeric = false;
        if (inside || isalnum((unsigned char)*p) || strchr(".-_]", *p))
            continue;
        if (*p == ',')
            return host_complain(place, p, err, "a comma; a line names one host");
        if (*p == '=')
            return host_complain(place, e->host, err,
                                 "a host name comes first, then its settings, as in "
                                 "'node1:4' or 'node1 slots=4'");
        if (strncmp(p, "\xc2\xa0", 2) == 0) /* of a text that was copied from a page */
            return host_complain(place, p, err, "a no-break space; write a blank");
        if (isprint((unsigned char)*p))
            return host_complain(place, p, err, "'%c' cannot be in a host name", *p);
        return host_complain(place, p, err, "byte 0x%02x cannot be in a host name",
                             (unsigned char)*p);
    }
    if (!only_numeric || is_v4(e->host, e->host_len))
        return 0;
    return host_complain(place, e->host, err, "'%.*s' is neither a name nor an address",
                         (int)(e->host_len > 60 ? 60 : e->host_len), e->host);
}

int host_login(const struct host_place *place, const char *p, const char *end,
               struct ddp_err *err)
{
    if (p == end)
        return host_complain(place, p, err, "a login name is missing here");
    for (const char *c = p; c < end; c++) {
        bool inner = c > p && *c && strchr("-.$+\\", *c);
        if (!isalnum((unsigned char)*c) && *c != '_' && !inner)
            return host_complain(place, c, err,
                                 isprint((unsigned char)*c)
                                     ? "'%c' cannot be in a login name"
                                     : "a login name of unprintable characters",
                                 *c);
    }
    return 0;
}

/* Parse user@ and move `*p` behind it. */
static int take_user(const struct host_place *place, const char **p, const char *end,
                     struct host_entry *e, struct ddp_err *err)
{
    const char *at = memchr(*p, '@', (size_t)(end - *p));
    if (!at)
        return 0;
    const char *again = memchr(at + 1, '@', (size_t)(end - at - 1));
    if (again)
        return host_complain(place, again, err, "a second '@' in one host");
    TRY(host_login(place, *p, at, err));
    e->user = *p;
    e->user_len = (size_t)(at - *p);
    *p = at + 1;
    return 0;
}

/* Parse ":N" after the host; `p` is at the colon. `*` and "auto": decided on the node. */
static int take_slots(const struct host_place *place, const char *p, const char *end,
                      struct host_entry *e, struct ddp_err *err)
{
    if (p == end)
        return 0;
    if (*p != ':')
        return host_complain(place, p, err, "':' and a number may follow an address");
    e->slots_at = ++p;
    if ((end - p == 1 && *p == '*') || (end - p == 4 && memcmp(p, "auto", 4) == 0))
        return 0;
    if (end - p == 1 && *p == '0') /* as in DeepSpeed's localhost:0,2 */
        return host_complain(place, p, err,
                             "':N' is the number of ranks, at least 1; -x "
                             "CUDA_VISIBLE_DEVICES=LIST chooses GPUs");
    return host_number(place, p, end, "the number of slots", 1, SLOTS_MAX, &e->slots,
                       err);
}

/* The ':' that ends a name, not one inside brackets; NULL when there is none. */
static const char *find_colon(const char *p, const char *end)
{
    for (bool inside = false; p < end; p++) {
        inside = *p == '[' || (inside && *p != ']');
        if (*p == ':' && !inside)
            return p;
    }
    return NULL;
}

/* "::1:2" may have been meant to be two slots of ::1. */
static void warn_of_slots(const char *p, size_t len)
{
    size_t digits = 0;
    while (digits < len && isdigit((unsigned char)p[len - 1 - digits]))
        digits++;
    if (digits > 0 && digits < len && p[len - digits - 1] == ':' &&
        is_v6(p, len - digits - 1))
        log_warn(
            "'%.*s' is one IPv6 address; write [%.*s]:%.*s for %.*s slots, or [%.*s]",
            (int)len, p, (int)(len - digits - 1), p, (int)digits, p + len - digits,
            (int)digits, p + len - digits, (int)len, p);
}

static bool is_blank(char c)
{
    return c == ' ' || c == '\t' || c == '\r' || c == '\n';
}

const char *host_item(const char **p, const char *stop, const char **end)
{
    const char *next = *p;
    for (bool inside = false; next < stop && (inside || *next != ','); next++)
        inside = *next == '[' || (inside && *next != ']');
    while (*p < next && is_blank(**p))
        ++*p;
    for (*end = next; *end > *p && is_blank((*end)[-1]);)
        --*end;
    return next;
}

int host_word(const struct host_place *place, const char *p, const char *end,
              struct host_entry *e, struct ddp_err *err)
{
    *e = (struct host_entry){0};
    if (p < end && *p == '^') {
        e->exclude = true;
        p++;
    }
    if (end - p >= 2 && *p == '"' && end[-1] == '"') {
        p++;
        end--;
    }
    if (p < end && *p == '+')
        return host_complain(place, p, err,
                             "'+' picks from a scheduler's allocation; name the host");
    TRY(take_user(place, &p, end, e, err));
    e->host = p;
    const char *close = memchr(p, ']', (size_t)(end - p));
    if (p < end && *p == '[' && memchr(p, ':', (size_t)((close ? close : end) - p))) {
        e->host = p + 1;
        e->host_len = (size_t)((close ? close : end) - p) - 1;
        e->literal = true;
        if (!close || !is_v6(e->host, e->host_len))
            return host_complain(place, p + 1, err, "not an IPv6 address in brackets");
        return take_slots(place, close + 1, end, e, err);
    }
    e->host_len = (size_t)(end - p);
    if (is_v6(p, e->host_len)) {
        e->literal = true;
        warn_of_slots(p, e->host_len);
        return 0;
    }
    const char *colon = find_colon(p, end);
    e->host_len = (size_t)((colon ? colon : end) - p);
    TRY(check_name(place, e, err));
    if (colon && memchr(colon + 1, ':', (size_t)(end - colon - 1)))
        return host_complain(place, colon, err,
                             "neither host:slots nor an IPv6 address ([address]:slots)");
    e->literal = is_v4(p, e->host_len);
    return take_slots(place, colon ? colon : end, end, e, err);
}
