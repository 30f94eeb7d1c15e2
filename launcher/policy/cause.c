/* launcher/policy/cause.c - see cause.h */
#include "launcher/policy/cause.h"

#include "common/idset.h"
#include "common/mem.h"
#include "common/signame.h"

#include <ctype.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>

/* peak memory from which the out-of-memory killer is suspected */
enum { LARGE_KIB = 1 << 20 };

/* ns: skew of one signal that a scheduler sends to all processes of a job */
enum { SAME_SIGNAL_NS = 2000000000 };

/* ns: ranks of other nodes fail when a node ends, and may be reported before it */
enum { LOST_NODE_NS = 500000000 };

/* Did the rank of `died` die of the signal `sent`? */
static bool caused_by_signal(const struct cause *sent, const struct cause *died)
{
    int64_t apart = sent->at_ns - died->at_ns;
    return sent->kind == CAUSE_SIGNAL && died->kind == CAUSE_EXIT &&
           WIFSIGNALED(died->status) && WTERMSIG(died->status) == sent->status &&
           apart < SAME_SIGNAL_NS && apart > -SAME_SIGNAL_NS;
}

/* Did the rank of `died` exit because the node of `lost` had ended? */
static bool caused_by_loss(const struct cause *lost, const struct cause *died)
{
    int64_t apart = lost->at_ns - died->at_ns;
    return lost->kind == CAUSE_NODE && died->kind == CAUSE_EXIT &&
           WIFEXITED(died->status) && apart < LOST_NODE_NS && apart > -LOST_NODE_NS;
}

bool cause_before(const struct cause *a, const struct cause *b)
{
    if (caused_by_signal(a, b) || caused_by_signal(b, a))
        return caused_by_signal(a, b);
    if (caused_by_loss(a, b) || caused_by_loss(b, a))
        return caused_by_loss(a, b);
    if (b->kind == CAUSE_NONE || a->at_ns != b->at_ns)
        return b->kind == CAUSE_NONE || a->at_ns < b->at_ns;
    return a->kind == CAUSE_EXIT && b->kind == CAUSE_EXIT && WIFSIGNALED(a->status) &&
           !WIFSIGNALED(b->status);
}

int cause_exit_code(int status)
{
    return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
}

/* "SIGSEGV (segmentation fault)": the text of strsignal() in lower case. */
static void name_signal(int sig, char *text, size_t size)
{
    char words[64];
    snprintf(words, sizeof words, "%s", strsignal(sig));
    if (islower((unsigned char)words[1])) /* "CPU time limit exceeded" stays */
        words[0] = (char)tolower((unsigned char)words[0]);
    if (sig < SIGRTMIN)
        snprintf(text, size, "%s (%s)", signal_name(sig), words);
    else
        snprintf(text, size, "signal %d", sig);
}

char *cause_of_death(const struct cause *c)
{
    char name[128], memory[160] = "";
    int sig = WIFSIGNALED(c->status) ? WTERMSIG(c->status) : 0;
    int code = WEXITSTATUS(c->status);
    double peak_gib = (double)c->peak_kib / (1 << 20);
    if (c->oom_kills > 0)
        snprintf(memory, sizeof memory,
                 ", perhaps as memory ran out there: the kernel killed %" PRIu64
                 " process%s",
                 c->oom_kills, c->oom_kills == 1 ? "" : "es");
    if (sig == 0)
        return xasprintf("exited with status %d%s%s", code,
                         code == EXIT_NO_RESTART ? " (no restart)" : "", memory);
    name_signal(sig, name, sizeof name);
    if (sig != SIGKILL)
        return xasprintf("died of %s%s%s", name,
                         WCOREDUMP(c->status) ? ", core dumped" : "", memory);
    if (c->cpu_max_s > 0)
        return xasprintf("died of %s as its %" PRIu64
                         " s of CPU time were used up (ulimit -t)",
                         name, c->cpu_max_s);
    bool large = c->peak_kib >= LARGE_KIB;
    if (*memory)
        return large ? xasprintf("died of %s%s; the rank's peak was %.1f GiB", name,
                                 memory, peak_gib)
                     : xasprintf("died of %s%s", name, memory);
    return !large
               ? xasprintf("died of %s, not sent by ddprun", name)
               : xasprintf("died of %s, not sent by ddprun: out of memory? its peak was "
                           "%.1f GiB",
                           name, peak_gib);
}

char *cause_rank_set(int n, bool (*in)(int rank, void *arg), void *arg)
{
    struct idset set = {0};
    for (int i = 0; i < n; i++) {
        if (in(i, arg))
            idset_add(&set, i, i);
    }
    long count = idset_count(&set);
    char *text = idset_text(&set);
    char *words = count > 0 ? xasprintf(count > 1 ? "ranks %s" : "rank %s", text) : NULL;
    free(text);
    idset_finish(&set);
    return words;
}
