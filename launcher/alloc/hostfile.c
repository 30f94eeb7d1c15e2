/* launcher/alloc/hostfile.c - --hostfile: one host per line, with slots and login
 *
 *     # Open MPI:  n1 slots=4 max_slots=8     MPICH:  n1:4     both are understood
 *     n[01-16].cluster slots=4   // Slurm's brackets
 *     user@n2 port=2222          comments: #, // and C's
 *     [fe80::1]:4
 *     ^n07                       excluded
 *
 * Comments are blanked in a copy of the line, so that columns are kept; error messages
 * show the original.
 */
#include "common/err.h"
#include "common/mem.h"
#include "common/text_file.h"
#include "launcher/alloc/hostbook.h"
#include "launcher/alloc/hosts.h"
#include "launcher/alloc/source.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

struct excluded {
    struct host_place place;
    struct host_entry entry;
};

struct reader {
    struct alloc *alloc;
    struct hostbook *book;
    struct host_place place;   /* the current line */
    char *blanked;             /* owned: that line without comments */
    size_t room;               /* of blanked */
    bool in_comment;           /* inside a C comment, */
    struct host_place comment; /* which begins here */
    const char *comment_at;
    struct excluded *excluded; /* owned */
    size_t nexcluded;
};

/* --- a line ------------------------------------------------------------------------- */

/* Copy the current line without comments to r->blanked; returns its end. */
static const char *blank_comments(struct reader *r)
{
    const char *line = r->place.text;
    size_t len = r->place.len;
    if (len + 1 > r->room) {
        r->room = len + 256;
        r->blanked = xrealloc(r->blanked, r->room, 1);
    }
    for (size_t i = 0; i < len; i++) {
        char next = i + 1 < len ? line[i + 1] : '\0';
        r->blanked[i] = ' ';
        if (r->in_comment) {
            if (line[i] == '*' && next == '/') {
                r->blanked[++i] = ' ';
                r->in_comment = false;
            }
        } else if (line[i] == '#' || (line[i] == '/' && next == '/')) {
            memset(r->blanked + i, ' ', len - i);
            break;
        } else if (line[i] == '/' && next == '*') {
            r->comment = r->place;
            r->comment_at = line + i;
            r->blanked[++i] = ' ';
            r->in_comment = true;
        } else if (!isspace((unsigned char)line[i])) {
            r->blanked[i] = line[i];
        }
    }
    r->blanked[len] = '\0';
    return r->blanked + len;
}

enum key { KEY_SLOTS, KEY_MAX, KEY_PORT, KEY_USER, KEY_HINT };

static const struct {
    const char *name;
    enum key key;
} keys[] = {
    {"slots", KEY_SLOTS},   {"cpu", KEY_SLOTS},
    {"count", KEY_SLOTS},   {"max_slots", KEY_MAX},
    {"slots_max", KEY_MAX}, {"max_cpu", KEY_MAX},
    {"cpu_max", KEY_MAX},   {"max_count", KEY_MAX},
    {"count_max", KEY_MAX}, {"port", KEY_PORT},
    {"username", KEY_USER}, {"user_name", KEY_USER},
    {"user", KEY_USER},     {"boards", KEY_HINT}, /* Open MPI's hints: checked, unused */
    {"sockets", KEY_HINT},  {"sockets_per_board", KEY_HINT},
    {"cores", KEY_HINT},    {"cores_per_socket", KEY_HINT},
};

/* Equal without regard to case, '-' counts as '_'. */
static bool key_is(const char *name, const char *p, size_t len)
{
    for (; len > 0 && *name; len--, name++, p++) {
        if (tolower((unsigned char)(*p == '-' ? '_' : *p)) != *name)
            return false;
    }
    return len == 0 && !*name;
}

/* Map a position in the blanked line to one in the original. */
static const char *original(const struct reader *r, const char *p)
{
    return r->place.text + (p - r->blanked);
}

static int set_number(struct reader *r, const char *p, const char *end, const char *what,
                      int max, int *field, struct ddp_err *err)
{
    int value;
    TRY(host_number(&r->place, original(r, p), original(r, end), what, 1, max, &value,
                    err));
    if (*field && *field != value)
        return host_complain(&r->place, original(r, p), err, "%s: already set to %d",
                             what, *field);
    *field = value;
    return 0;
}

static int set_key(struct reader *r, struct host_entry *e, const char *key,
                   size_t key_len, const char *p, const char *end, struct ddp_err *err)
{
    size_t i = 0;
    int unused = 0;
    while (i < ARRAY_LEN(keys) && !key_is(keys[i].name, key, key_len))
        i++;
    if (i == ARRAY_LEN(keys))
        return host_complain(
            &r->place, original(r, key), err,
            "unknown setting '%.*s'; slots, max_slots, port and username "
            "are known",
            (int)(key_len > 40 ? 40 : key_len), key);
    switch (keys[i].key) {
    case KEY_SLOTS:
        e->slots_at = original(r, p);
        return set_number(r, p, end, keys[i].name, SLOTS_MAX, &e->slots, err);
    case KEY_MAX:
        return set_number(r, p, end, keys[i].name, SLOTS_MAX, &e->max_slots, err);
    case KEY_PORT:
        return set_number(r, p, end, "port", 65535, &e->port, err);
    case KEY_USER:
        if (e->user)
            return host_complain(&r->place, original(r, p), err, "a second login name");
        TRY(host_login(&r->place, original(r, p), original(r, end), err));
        e->user = original(r, p);
        e->user_len = (size_t)(end - p);
        return 0;
    case KEY_HINT:
        return set_number(r, p, end, keys[i].name, SLOTS_MAX, &unused, err);
    }
    return 0;
}

static const char *skip_blanks(const char *p)
{
    return p + strspn(p, " ");
}

/* The settings after the host: key = value, blanks around '=' allowed. */
static int read_settings(struct reader *r, const char *p, struct host_entry *e,
                         struct ddp_err *err)
{
    while (*(p = skip_blanks(p))) {
        size_t key_len = strcspn(p, " =");
        const char *equals = skip_blanks(p + key_len);
        if (*equals != '=' || key_len == 0)
            return host_complain(&r->place, original(r, p), err,
                                 "'%.*s' is not a setting such as slots=4; a line names "
                                 "one host",
                                 (int)(key_len > 40 ? 40 : key_len), p);
        const char *value = skip_blanks(equals + 1);
        const char *end = value + strcspn(value, " ");
        TRY(set_key(r, e, p, key_len, value, end, err));
        p = end;
    }
    return 0;
}

static int read_line(struct reader *r, struct ddp_err *err)
{
    blank_comments(r);
    const char *p = skip_blanks(r->blanked), *end = p + strcspn(p, " ");
    if (p == end)
        return 0;
    struct host_entry e;
    if (end - p == 4 && memcmp(p, "rank", 4) == 0 && strchr(end, '='))
        return host_complain(
            &r->place, original(r, p), err,
            "a line of a rankfile; a hostfile begins a line with a host");
    if (host_word(&r->place, original(r, p), original(r, end), &e, err) < 0 ||
        read_settings(r, end, &e, err) < 0)
        return -1;
    if (e.max_slots && e.slots > e.max_slots)
        return host_complain(&r->place, e.slots_at, err,
                             "%d slots are more than max_slots=%d", e.slots, e.max_slots);
    if (e.max_slots && !e.slots)
        e.slots = e.max_slots;
    if (!e.exclude)
        return hostbook_add(r->book, &r->place, &e, err);
    r->excluded = xrealloc(r->excluded, r->nexcluded + 1, sizeof *r->excluded);
    r->excluded[r->nexcluded++] = (struct excluded){r->place, e};
    return 0;
}

/* --- interface ---------------------------------------------------------------------- */

static int exclude_one(struct reader *r, const struct excluded *x, bool *keep,
                       struct ddp_err *err)
{
    SCOPED(strv_finish) struct strv names = {0};
    TRY(host_names(&x->place, &x->entry, &names, err));
    for (size_t i = 0; i < names.n; i++) {
        long node = hostbook_find(r->book, names.v[i], &x->place, x->entry.host, err);
        TRY(node);
        keep[node] = false;
    }
    return 0;
}

static int exclude(struct reader *r, struct ddp_err *err)
{
    OWNED bool *keep = xcalloc(r->alloc->nnodes, sizeof *keep);
    memset(keep, true, r->alloc->nnodes * sizeof *keep);
    for (size_t i = 0; i < r->nexcluded; i++)
        TRY(exclude_one(r, &r->excluded[i], keep, err));
    alloc_keep(r->alloc, keep);
    return 0;
}

static int read_lines(struct reader *r, const char *text, size_t size,
                      struct ddp_err *err)
{
    static const char bom[] = "\xef\xbb\xbf"; /* written by some editors */
    const char *end = text + size;
    if (size >= 3 && memcmp(text, bom, 3) == 0)
        text += 3;
    else if (size >= 2 &&
             (memcmp(text, "\xff\xfe", 2) == 0 || memcmp(text, "\xfe\xff", 2) == 0))
        return err_set(err, "the hostfile '%s' is text in UTF-16; save it as UTF-8",
                       r->place.source);
    while (text < end) {
        const char *nl = memchr(text, '\n', (size_t)(end - text));
        const char *stop = nl ? nl : end;
        r->place.line++;
        r->place.text = text;
        r->place.len = (size_t)(stop - text);
        const char *nul = memchr(text, '\0', r->place.len);
        if (nul)
            return host_complain(&r->place, nul, err, "a NUL byte: not a text file");
        TRY(read_line(r, err));
        text = stop + 1;
    }
    if (r->in_comment)
        return host_complain(&r->comment, r->comment_at, err,
                             "this comment is never closed");
    if (r->alloc->nnodes == 0)
        return err_set(
            err,
            "the hostfile '%s' names no host; write one in each line, such as: node1 slots=4",
            r->place.source);
    return r->nexcluded ? exclude(r, err) : 0;
}

int hostfile_parse(const char *source, const char *text, size_t size, struct alloc *alloc,
                   struct ddp_err *err)
{
    struct reader r = {.alloc = alloc,
                       .book = hostbook_create(alloc, REPEAT_REFUSED),
                       .place = {.source = source}};
    int rc = read_lines(&r, text, size, err);
    if (rc == 0 && alloc->nnodes == 0)
        rc = err_set(err, "no host is left: every one of hostfile '%s' is excluded",
                     source);
    hostbook_destroy(r.book);
    free(r.blanked);
    free(r.excluded);
    return rc;
}

static bool detect(const struct opts *opts)
{
    return opts->hostfile != NULL;
}

int hostfile_read(const char *path, int64_t silence_ms, struct alloc *alloc,
                  struct ddp_err *err)
{
    size_t size;
    OWNED char *text =
        text_file_load("hostfile", path, HOSTFILE_MAX, silence_ms, &size, err);
    return text ? hostfile_parse(path, text, size, alloc, err) : -1;
}

static int read_hostfile(const struct opts *opts, struct alloc *alloc,
                         struct ddp_err *err)
{
    alloc->changes = opts->min_nnodes > 0 && !opts->hosts; /* the file is watched */
    return hostfile_read(opts->hostfile, opts->start_timeout_ms, alloc, err);
}

const struct alloc_source alloc_hostfile = {"hostfile", detect, read_hostfile, NULL,
                                            NULL};

/* Variables of Open MPI, MPICH and Intel MPI, which Kubernetes' operators set in a pod:
 * the hostfile, and arguments for ssh. */
static const struct mpi_pod {
    const char *hostfile, *ssh_args;
} mpi_pods[] = {
    {"OMPI_MCA_orte_default_hostfile", "OMPI_MCA_plm_rsh_args"},
    {"HYDRA_HOST_FILE", "HYDRA_LAUNCH_EXTRA_ARGS"},
    {"I_MPI_HYDRA_HOST_FILE", "I_MPI_HYDRA_BOOTSTRAP_EXEC_EXTRA_ARGS"},
};

static const struct mpi_pod *mpi_pod(void)
{
    for (size_t i = 0; i < ARRAY_LEN(mpi_pods); i++) {
        const char *path = getenv(mpi_pods[i].hostfile);
        if (path && *path)
            return &mpi_pods[i];
    }
    return NULL;
}

static bool detect_mpi(const struct opts *opts)
{
    return mpi_pod() != NULL;
}

static int read_mpi_hostfile(const struct opts *opts, struct alloc *alloc,
                             struct ddp_err *err)
{
    const struct mpi_pod *pod = mpi_pod();
    if (!pod)
        return err_set(err, "no variable names a hostfile");
    alloc->ssh_args = getenv(pod->ssh_args);
    return hostfile_read(getenv(pod->hostfile), TEXT_FILE_SILENCE_MS, alloc, err);
}

const struct alloc_source alloc_mpi_hostfile = {"mpi-hostfile", detect_mpi,
                                                read_mpi_hostfile, NULL, NULL};
