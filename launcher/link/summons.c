/* launcher/link/summons.c - see summons.h */
#include "launcher/link/summons.h"

#include "common/duration.h"
#include "common/err.h"
#include "common/mem.h"
#include "launcher/link/message.h"

#include <errno.h>
#include <poll.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { SUMMONS_MAX = 16 << 10 };

char *summons_write(const struct summons *s)
{
    char hex[SECRET_SIZE * 2 + 1], *text = NULL;
    size_t size;
    secret_to_hex(&s->key, hex);
    FILE *f = open_memstream(&text, &size);
    if (!f)
        abort(); /* as mem.h does when memory is gone */
    fprintf(f, "ddprun-agent %d\nkey %s\nnode %u\nname %s\n", LINK_PROTOCOL, hex, s->node,
            s->name);
    if (s->log_level)
        fprintf(f, "log %s\n", s->log_level);
    for (size_t i = 0; i < s->calls.n; i++)
        fprintf(f, "call %s\n", s->calls.v[i]);
    fputs("end\n", f);
    fclose(f);
    secret_wipe(hex, sizeof hex);
    return text;
}

static int parse_number(const char *text, unsigned long max, unsigned long *out)
{
    char *end;
    errno = 0;
    *out = strtoul(text, &end, 10);
    return errno || end == text || *end || *out > max ? -1 : 0;
}

/* One line, cut into its word and the rest. */
static int parse_line(struct summons *s, const char *word, const char *rest,
                      bool *has_key, struct ddp_err *err)
{
    unsigned long n;
    if (strcmp(word, "ddprun-agent") == 0) {
        if (parse_number(rest, UINT32_MAX, &n) < 0 || n != LINK_PROTOCOL)
            return err_set(err, "versions differ: it speaks protocol '%s', this one %d",
                           rest, LINK_PROTOCOL);
    } else if (strcmp(word, "key") == 0) {
        *has_key = true;
        return secret_from_hex(rest, &s->key, err);
    } else if (strcmp(word, "node") == 0) {
        if (parse_number(rest, NODES_MAX, &n) < 0)
            return err_set(err, "'%s' is not the number of a node", rest);
        s->node = (unsigned)n;
    } else if (strcmp(word, "name") == 0) {
        free(s->name);
        s->name = xstrdup(rest);
    } else if (strcmp(word, "log") == 0) {
        free(s->log_level);
        s->log_level = xstrdup(rest);
    } else if (strcmp(word, "call") == 0) {
        strv_push(&s->calls, rest);
    } else {
        return err_set(err, "'%s' is nothing an agent knows", word);
    }
    return 0;
}

int summons_parse(const char *text, struct summons *s, struct ddp_err *err)
{
    char *copy = xstrdup(text), *save = NULL;
    bool has_key = false, first = true;
    int rc = 0;
    for (char *line = strtok_r(copy, "\n", &save); line && rc == 0;
         line = strtok_r(NULL, "\n", &save)) {
        if (strcmp(line, "end") == 0)
            break;
        char *rest = strchr(line, ' ');
        if (!rest || (first && strncmp(line, "ddprun-agent ", 13) != 0)) {
            rc = err_set(err, "these are not the words of a launcher");
            break;
        }
        *rest++ = '\0';
        first = false;
        rc = parse_line(s, line, rest, &has_key, err);
    }
    if (rc == 0 && (!has_key || !s->name || s->calls.n == 0))
        rc = err_set(err, "no key, no name or nobody to call");
    secret_wipe(copy, strlen(text));
    free(copy);
    return rc;
}

/* A byte at a time, as what comes after the last line is not ours to take. */
int summons_read(int fd, int64_t deadline_ms, struct summons *s, struct ddp_err *err)
{
    char *text = xcalloc(1, SUMMONS_MAX);
    size_t n = 0;
    int rc = 1;
    while (rc == 1) {
        struct pollfd p = {.fd = fd, .events = POLLIN};
        int64_t left = deadline_ms - now_ms();
        if (left <= 0 || poll(&p, 1, (int)left) == 0)
            rc = err_set(err, "nobody says on stdin what to do: it is started by ddprun");
        else if (n == SUMMONS_MAX - 1 || read(fd, text + n, 1) != 1)
            rc = err_set(err, "the words on stdin end early: it is started by ddprun");
        else if (text[n++] == '\n' && n >= 5 && memcmp(text + n - 5, "\nend\n", 5) == 0)
            rc = summons_parse(text, s, err);
    }
    secret_wipe(text, SUMMONS_MAX);
    free(text);
    return rc;
}

void summons_finish(struct summons *s)
{
    secret_wipe(&s->key, sizeof s->key);
    free(s->name);
    free(s->log_level);
    strv_finish(&s->calls);
    *s = (struct summons){0};
}
