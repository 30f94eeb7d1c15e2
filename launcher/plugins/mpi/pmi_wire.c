/* launcher/plugins/mpi/pmi_wire.c - see pmi_wire.h */
#include "launcher/plugins/mpi/pmi_wire.h"

#include "common/mem.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LENGTH_DIGITS = 6 };

static long pmi2_size(const char *data, size_t size)
{
    long n = 0;
    for (size_t i = 0; i < LENGTH_DIGITS && i < size; i++) {
        if (!isdigit((unsigned char)data[i]) && data[i] != ' ')
            return -1;
        n = n * 10 + (data[i] == ' ' ? 0 : data[i] - '0');
    }
    if (size < LENGTH_DIGITS)
        return 0;
    if (n > PMI_REQUEST_MAX)
        return -1;
    return size - LENGTH_DIGITS < (size_t)n ? 0 : n + LENGTH_DIGITS;
}

long pmi_request_size(const char *data, size_t size, bool pmi2)
{
    if (pmi2)
        return pmi2_size(data, size);
    const char *end = memchr(data, '\n', size);
    if (end)
        return end - data + 1 <= PMI_REQUEST_MAX ? end - data + 1 : -1;
    return size < PMI_REQUEST_MAX ? 0 : -1;
}

static void add_word(struct pmi_request *r, char *word, char *equals)
{
    if (r->n == PMI_WORDS || !equals)
        return;
    *equals = '\0';
    r->words[r->n].name = word;
    r->words[r->n++].value = equals + 1;
}

/* Words end at blanks, except that "value=" extends to the end of the line. */
static void read_pmi1(struct pmi_request *r, char *text)
{
    text[strcspn(text, "\r\n")] = '\0';
    for (char *p = text + strspn(text, " "); *p; p += strspn(p, " ")) {
        char *word = p, *equals;
        p += strcspn(p, " ");
        if (strncmp(word, "value=", 6) == 0)
            p = word + strlen(word);
        if (*p)
            *p++ = '\0';
        equals = strchr(word, '=');
        add_word(r, word, equals);
    }
}

/* Undoes the doubling of ';' in place. */
static void read_pmi2(struct pmi_request *r, char *text)
{
    for (char *p = text; *p;) {
        char *word = p, *to = p, *equals = NULL;
        for (; *p && (*p != ';' || p[1] == ';'); p++, to++) {
            if (*p == ';')
                p++;
            if (*p == '=' && !equals)
                equals = to;
            *to = *p;
        }
        if (*p)
            p++;
        *to = '\0';
        add_word(r, word, equals);
    }
}

void pmi_request_read(struct pmi_request *r, char *text, size_t size, bool pmi2)
{
    r->n = 0;
    if (pmi2) {
        /* move over the length digits to make room for a final NUL */
        memmove(text, text + LENGTH_DIGITS, size - LENGTH_DIGITS);
        text[size - LENGTH_DIGITS] = '\0';
        read_pmi2(r, text);
    } else {
        read_pmi1(r, text);
    }
}

const char *pmi_word(const struct pmi_request *r, const char *name)
{
    for (size_t i = 0; i < r->n; i++) {
        if (strcmp(r->words[i].name, name) == 0)
            return r->words[i].value;
    }
    return NULL;
}

const char *pmi_text(const struct pmi_request *r, const char *name)
{
    const char *value = pmi_word(r, name);
    return value ? value : "";
}

/* --- the mapping -------------------------------------------------------------------- */

struct run {
    uint32_t node, n; /* n consecutive ranks on this node */
};

static size_t runs_of(const struct rankmap *map, struct run *runs)
{
    size_t n = 0;
    for (uint32_t r = 0; r < map->nranks; r++) {
        if (n > 0 && runs[n - 1].node == map->node_of[r])
            runs[n - 1].n++;
        else
            runs[n++] = (struct run){map->node_of[r], 1};
    }
    return n;
}

/* The shortest period of the runs; the last repetition may be incomplete. */
static size_t period_of(const struct run *runs, size_t n)
{
    for (size_t p = 1; p < n; p++) {
        size_t i = p;
        while (i < n && runs[i].node == runs[i % p].node &&
               (runs[i].n == runs[i % p].n || (i + 1 == n && runs[i].n < runs[i % p].n)))
            i++;
        if (i == n)
            return p;
    }
    return n;
}

char *pmi_mapping(const struct rankmap *map)
{
    char *text = NULL;
    size_t size = 0;
    OWNED struct run *runs = xcalloc(map->nranks + 1, sizeof *runs);
    size_t n = runs_of(map, runs);
    n = period_of(runs, n);
    FILE *f = xmemstream(&text, &size);
    fprintf(f, "(vector");
    for (size_t i = 0; i < n;) {
        uint32_t nodes = 1;
        while (i + nodes < n && runs[i + nodes].n == runs[i].n &&
               runs[i + nodes].node == runs[i].node + nodes)
            nodes++;
        fprintf(f, ",(%u,%u,%u)", runs[i].node, nodes, runs[i].n);
        i += nodes;
    }
    fprintf(f, ")");
    xmemclose(f);
    if (size < PMI_VALUE_MAX)
        return text;
    free(text);
    return NULL;
}
