/* launcher/tools/script/script.c - see script.h
 *
 * The values of a template are set below, one function per topic; template_fill() reports
 * a name that has no value. Values from the user are quoted for bash, on one line each
 * (words.h).
 */
#define LOG_SUBSYS "script"
#include "launcher/tools/script/script.h"

#include "common/ambient_launcher.h"
#include "common/embedded.h"
#include "common/err.h"
#include "common/log.h"
#include "common/mem.h"
#include "launcher/cli/interpreter.h"
#include "launcher/cli/walltime.h"
#include "launcher/tools/script/python_env.h"
#include "launcher/tools/script/request.h"
#include "launcher/tools/script/submit.h"
#include "launcher/tools/script/template.h"
#include "launcher/tools/script/words.h"

#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* --- values ------------------------------------------------------------------------- */

static void set(struct strv *values, const char *name, const char *value)
{
    strv_env_set(values, name, value ? value : "");
}

static void setf(struct strv *values, const char *name, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));

static void setf(struct strv *values, const char *name, const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    OWNED char *value = xvasprintf(fmt, args);
    va_end(args);
    set(values, name, value);
}

static bool mentions(const char *text, const char *place)
{
    return text && strstr(text, place);
}

static void set_flag(struct strv *values, const char *name, bool yes)
{
    set(values, name, yes ? "yes" : "");
}

/* 0 means "not known" and sets an empty value. */
static void set_number(struct strv *values, const char *name, int64_t n)
{
    if (n)
        setf(values, name, "%" PRId64, n);
    else
        set(values, name, "");
}

static void set_numbers(struct strv *values, const struct request *r)
{
    /* of the requests only Slurm's is a range; ddprun wants all spares at the start */
    bool range =
        r->least < r->hosts && r->hosts == r->nodes && r->site->scheduler == SCHED_SLURM;
    if (range)
        setf(values, "node_range", "%d-%d", r->least, r->nodes);
    else
        setf(values, "node_range", "%d", r->hosts);
    set_number(values, "nodes", r->hosts);
    set_flag(values, "goes_on", r->hosts > r->least);
    int cpus =
        r->cpus_per_node > r->ranks_per_node ? r->cpus_per_node : r->ranks_per_node;
    set_number(values, "mincpus", range ? cpus : 0);
    set_number(values, "gpus", r->gpus);
    set_number(values, "ranks", range ? 0 : r->ranks);
    set_number(values, "ranks_per_node", range ? 0 : r->ranks_per_node);
    set_number(values, "cpus_per_rank", range ? 0 : r->cpus_per_rank);
    set_number(values, "threads", r->cpus_per_rank > 0 ? r->cpus_per_rank : 1);
    set_number(values, "cpus_per_node", r->cpus_per_node);
    set_number(values, "slots", (int64_t)r->hosts * r->cpus_per_node);
    set_number(values, "all_ranks", (int64_t)r->hosts * r->ranks_per_node);
    set_number(values, "all_gpus", (int64_t)r->hosts * r->gpus);
}

static void set_times(struct strv *values, const struct opts *opts,
                      const struct request *r)
{
    enum scheduler scheduler = r->site->scheduler;
    OWNED char *time = walltime_text(scheduler, r->time_s);
    /* Slurm can signal only the script. What the others send before the end, if anything,
     * goes to every process of the job, and ranks would die of it: the script has a
     * timer. */
    set_number(values, "timer", scheduler == SCHED_SLURM ? 0 : r->time_s - r->warning_s);
    set(values, "end_signals", schedulers[scheduler].end_signals);
    set(values, "time", time);
    set_number(values, "warning", r->warning_s);
    int64_t grace_s =
        opts_given(opts, "grace") ? opts->grace_ms / 1000 : r->warning_s * 3 / 4;
    set_number(values, "grace", grace_s > 0 ? grace_s : 1);
}

/* For Slurm 0 means all memory of the node. */
static void set_memory(struct strv *values, const struct request *r)
{
    bool all = r->memory_mb < 0 && r->site->scheduler == SCHED_SLURM;
    if (r->memory_mb > 0)
        setf(values, "memory", "%" PRId64 "%s", r->memory_mb,
             r->site->scheduler == SCHED_PBS ? "mb" : "M");
    else
        set(values, "memory", all ? "0" : "");
}

/* Flags for what the request leaves to the scheduler's defaults: the script says so. */
static void set_unknown(struct strv *values, const struct request *r, const char *asks)
{
    bool whole = r->partition && r->partition->whole;
    bool memory = r->site->scheduler == SCHED_SLURM ? *strv_env_get(values, "memory")
                                                    : mentions(asks, "{{memory}}");
    set_flag(values, "cpus_unknown",
             r->cpus_per_rank == 0 && !whole && !*strv_env_get(values, "mincpus"));
    set_flag(values, "memory_unknown", !memory && !whole);
}

/* The promise of the script's head, repeated to ddprun: it starts no rank where the job
 * got fewer hosts, or hosts with fewer GPUs. --scaling runs several sizes, so it pins
 * only the ranks per node. */
static char *pinned_ranks(const struct opts *opts, const struct request *r)
{
    if (opts->scaling)
        return xasprintf("--nproc-per-node %d", r->ranks_per_node);
    if (r->least < r->nodes)
        return xasprintf("--nnodes %d:%d --nproc-per-node %d", r->least, r->nodes,
                         r->ranks_per_node);
    return xasprintf("-np %d --nnodes %d --nproc-per-node %d", r->ranks, r->nodes,
                     r->ranks_per_node);
}

/* The options between ddprun and the program. */
static void set_options(struct strv *values, const struct opts *opts,
                        const struct request *r)
{
    bool events = opts->requeue && !opts_given(opts, "events");
    OWNED char *given = script_quote_all(opts->passed.v);
    OWNED char *text = pinned_ranks(opts, r);
    if (r->site->interface && !opts_given(opts, "interface"))
        xappendf(&text, " --interface %s", r->site->interface);
    if (!opts_given(opts, "grace"))
        xappendf(&text, " --grace %ss", strv_env_get(values, "grace"));
    if (events)
        xappendf(&text, " --events \"$events\"");
    if (!opts_given(opts, "output-filename"))
        xappendf(&text, " --output-filename \"$log%s\"",
                 opts->requeue ? "/start-$starts" : "");
    setf(values, "options", "%s%s%s", text, *given ? " " : "", given);
    set_flag(values, "events", events);
}

static void set_program(struct strv *values, const struct request *r,
                        const struct opts *opts)
{
    OWNED char *text = script_quote_all(opts->argv);
    if (opts->requeue)
        xappendf(&text, " ${resume:+%s}", opts->requeue);
    set(values, "program_and_more", text);
    set(values, "requeue", opts->requeue);
    set_flag(values, "submits_itself",
             opts->requeue && schedulers[r->site->scheduler].submits_itself);
    set_flag(values, "names_itself", opts->requeue || r->hosts > r->least);
    set(values, "on_lost_script", opts->requeue ? "scontrol requeue" : "scancel");
}

static void set_surroundings(struct strv *values, const struct opts *opts,
                             const struct script_place *place, const struct site *site)
{
    const char *modules = opts->modules ? opts->modules : site->modules;
    set(values, "modules", modules);
    set(values, "modules_init", modules ? site->modules_init : NULL);
    set(values, "scratch", site->scratch);
    set(values, "exports", site->exports);
    set_flag(values, "pbs", site->scheduler == SCHED_PBS);
    set_flag(values, "lsf", site->scheduler == SCHED_LSF);
    set_flag(values, "flux", site->scheduler == SCHED_FLUX);
    set(values, "environment", place->python_env ? place->python_env->says : NULL);
    set(values, "activate", place->python_env ? place->python_env->lines : NULL);
    const char *ddprun = place->ddprun;
    OWNED char *dir =
        ddprun ? xstrndup(ddprun, (size_t)(strrchr(ddprun, '/') - ddprun)) : NULL;
    OWNED char *path = dir ? script_quote(dir) : NULL;
    set(values, "path", path);
}

/* "train: 16 ranks on 4 nodes of dgx, 2h at most (ThaiSC TARA)" */
static void set_title(struct strv *values, const struct request *r)
{
    OWNED char *title = xasprintf("%s: ", r->name);
    char time[40];
    int spares = r->hosts - r->nodes;
    walltime_say(r->time_s, time, sizeof time);
    if (r->least < r->nodes)
        xappendf(&title, "%d-", r->least * r->ranks_per_node);
    xappendf(&title, "%d rank%s on ", r->ranks, r->ranks == 1 ? "" : "s");
    if (r->least < r->nodes)
        xappendf(&title, "%d-", r->least);
    xappendf(&title, "%d node%s", r->nodes, r->nodes == 1 ? "" : "s");
    if (spares > 0)
        xappendf(&title, " and %d spare%s", spares, spares == 1 ? "" : "s");
    if (r->partition_name)
        xappendf(&title, " of %s", r->partition_name);
    xappendf(&title, ", at most %s (%s)", time,
             r->site->title ? r->site->title : r->site->name);
    set(values, "title", title);
    set(values, "name", r->name);
}

/* --- the site's request and submit words ---------------------------------------------
 */

static char *fill_site_text(const struct site *s, const char *key, const char *text,
                            const struct strv *values, struct ddp_err *err)
{
    OWNED char *name = xasprintf("%s, %s", s->file, key);
    return template_fill(name, text ? text : "", values, NULL, NULL, err);
}

/* The slots of "-pe NAME SLOTS". */
static int slots_of(const char *asked)
{
    const char *pe = strstr(asked, "-pe ");
    int slots = 1;
    if (pe && sscanf(pe, "-pe %*s %d", &slots) == 1 && slots > 0)
        return slots;
    return 1;
}

/* `-l gpu=N` of Grid Engine means N GPUs per slot, per job or per host: sge_complex(5),
 * column "consumable" of `qconf -sc`. The N for `r->gpus` GPUs on each node; `asked` is
 * the request's text, in which the number of slots stands behind "-pe NAME". -1: no N
 * asks for exactly these GPUs. */
static int complex_amount(const struct request *r, const char *asked, int *amount,
                          struct ddp_err *err)
{
    const struct site *s = r->site;
    bool whole = r->partition && r->partition->whole;
    int slots = slots_of(asked);
    int64_t all = (int64_t)r->hosts * r->gpus;
    *amount = r->gpus;
    if (s->consumable == CONSUMABLE_JOB && r->hosts > 1 && !whole)
        return err_set(
            err,
            "%s: gpu-consumable = JOB takes GPUs from the job's first host only, "
            "not from %d nodes; write -N 1, or whole-nodes = yes in the site "
            "file if a job has its nodes to itself",
            s->name, r->hosts);
    if (s->consumable != CONSUMABLE_SLOT)
        return 0;
    if (all % slots != 0)
        return err_set(
            err,
            "%s: gpu-consumable = YES is multiplied by the slots, and %d slots "
            "do not divide %d GPUs; ask for {{all_gpus}} slots in the site "
            "file's request, or write JOB or HOST as in 'qconf -sc'",
            s->name, slots, (int)all);
    *amount = (int)(all / slots);
    return 0;
}

/* The site's request for nodes, CPUs and GPUs. For Grid Engine {{gpus}} is the amount
 * that its complex wants, which depends on the slots that the same request asks for. */
static char *fill_request(struct strv *values, const struct request *r, const char *asks,
                          struct ddp_err *err)
{
    int amount;
    char *text = fill_site_text(r->site, "request", asks, values, err);
    if (!text || r->site->scheduler != SCHED_SGE || r->gpus == 0 ||
        !mentions(asks, "{{gpus}}"))
        return text;
    int rc = complex_amount(r, text, &amount, err);
    free(text);
    if (rc < 0)
        return NULL;
    set_number(values, "gpus", amount);
    return fill_site_text(r->site, "request", asks, values, err);
}

/* Account and partition get lines of their own unless the site's templates name them. */
static int set_request(struct strv *values, const struct request *r, struct strv *submit,
                       struct ddp_err *err)
{
    const struct site *s = r->site;
    const struct partition *p = r->partition;
    const char *asks = p && p->request ? p->request : s->request;
    set_unknown(values, r, asks);
    set(values, "account", r->account);
    set(values, "partition", r->partition_name);
    set_flag(values, "gpus_unrequested",
             r->gpus > 0 && !mentions(asks, "{{gpus}}") && !(p && p->whole));
    if (r->memory_said && s->scheduler != SCHED_SLURM && !mentions(asks, "{{memory}}"))
        return err_set(
            err,
            "--mem: site %s does not define how to request memory; leave it out, "
            "or write a site file whose request names {{memory}}",
            s->name);
    OWNED char *request = fill_request(values, r, asks, err);
    OWNED char *words =
        request ? fill_site_text(s, "submit", s->submit, values, err) : NULL;
    if (words) {
        set(values, "request", request);
        for (char *w = strtok(words, " \n"); w; w = strtok(NULL, " \n"))
            strv_push(submit, w);
    }
    if (mentions(s->submit, "{{account}}") || mentions(asks, "{{account}}"))
        set(values, "account", "");
    if (mentions(s->submit, "{{partition}}") || mentions(asks, "{{partition}}"))
        set(values, "partition", "");
    return words ? 0 : -1;
}

static void set_submission(struct strv *values, const struct script_place *place,
                           const struct site *s, const struct strv *words)
{
    const char *submit = schedulers[s->scheduler].submit;
    OWNED char *more = script_quote_all(words->v);
    OWNED char *asked = script_quote_all(place->words + 1);
    OWNED char *file = script_quote(place->file ? place->file : "job.sh");
    setf(values, "submit_words", "%s%s%s", submit, *more ? " " : "", more);
    setf(values, "submit_line", "%s %s%s", strv_env_get(values, "submit_words"),
         s->scheduler == SCHED_LSF ? "< " : "", file);
    setf(values, "command", "ddprun %s", asked);
    set(values, "script_file", file);
    set(values, "id", "{{id}}"); /* in a name of a file Flux replaces it */
}

/* --- the script --------------------------------------------------------------------- */

/* The site of --site, else the generic site of --script's scheduler. */
static struct site *script_site(const struct opts *opts, struct ddp_err *err)
{
    const char *name = opts->site ? opts->site : schedulers[opts->script].name;
    if (!*name) {
        err_set(err, "which scheduler? write --script " SCHEDULER_NAMES
                     ", or --site NAME (--list-sites)");
        return NULL;
    }
    struct site *s = site_read(name, err);
    if (s && opts->script != SCHED_NONE && opts->script != s->scheduler) {
        err_set(err, "site %s has %s, not %s; write --script %s", name,
                schedulers[s->scheduler].name, schedulers[opts->script].name,
                schedulers[s->scheduler].name);
        site_destroy(s);
        return NULL;
    }
    return s;
}

static const char *find_template(const char *name, void *arg, struct ddp_err *err)
{
    const char *text = embedded_text(embedded_templates, name);
    if (!text)
        err_set(err, "there is no template '%s'", name);
    return text;
}

static char *fill(const struct opts *opts, const struct script_place *place,
                  const struct request *r, struct strv *submit, struct ddp_err *err)
{
    SCOPED(strv_finish) struct strv values = {0};
    SCOPED(strv_finish) struct strv more = {0};
    set_title(&values, r);
    set_numbers(&values, r);
    set_times(&values, opts, r);
    set_memory(&values, r);
    if (set_request(&values, r, &more, err) < 0)
        return NULL;
    set_options(&values, opts, r);
    set_program(&values, r, opts);
    set_surroundings(&values, opts, place, r->site);
    set_submission(&values, place, r->site, &more);
    submit_command(r->site->scheduler, &more, submit);
    OWNED char *file = xasprintf("%s.sh.in", schedulers[r->site->scheduler].name);
    return template_fill(file, embedded_text(embedded_templates, file), &values,
                         find_template, NULL, err);
}

int script_make(const struct opts *opts, const struct script_place *place,
                struct script *s, struct ddp_err *err)
{
    SCOPED(request_finish) struct request r = {0};
    *s = (struct script){.site = script_site(opts, err)};
    if (!s->site)
        return -1;
    if (opts->requeue && s->site->scheduler == SCHED_PBS && !place->file)
        return err_set(err,
                       "a PBS job that is to go on submits its own script: write it to "
                       "a file first (ddprun --script pbs ... > job.sh; qsub job.sh)");
    if ((opts->spares > 0 || opts->min_nnodes > 0) &&
        !schedulers[s->site->scheduler].goes_on)
        return err_set(
            err,
            "%s: only Slurm and Grid Engine let a job go on that has lost a node; "
            "%s, and let --requeue start the job again",
            opts->spares > 0 ? "--spares" : "--nnodes MIN:MAX",
            opts->spares > 0 ? "leave it out" : "write --nnodes N");
    if (request_make(opts, s->site, &r, err) == 0)
        s->text = fill(opts, place, &r, &s->submit, err);
    return s->text ? 0 : -1;
}

void script_finish(struct script *s)
{
    site_destroy(s->site);
    free(s->text);
    strv_finish(&s->submit);
    *s = (struct script){0};
}

/* --- from the command line ---------------------------------------------------------- */

/* Is it where PATH of every shell on every node looks? */
static bool found_anyway(const char *program)
{
    return strcmp(program, "/usr/bin/ddprun") == 0 ||
           strcmp(program, "/bin/ddprun") == 0 ||
           strcmp(program, "/usr/local/bin/ddprun") == 0;
}

/* Without an environment the job runs the system's python3, which lacks the packages. */
static void warn_of_no_environment(const struct opts *opts, const struct site *site,
                                   const struct python_env *env)
{
    const char *program = opts->argv[0];
    size_t len = strlen(program);
    bool python = opts->module || strncmp(program, "python", 6) == 0 ||
                  (len > 3 && strcmp(program + len - 3, ".py") == 0);
    if (python && !env->says && !opts->modules && !site->modules)
        log_warn("no Python environment is active here, so the job runs '%s' with the "
                 "system's; activate one and make the script again, or give --modules",
                 program);
}

/* The job runs elsewhere, and what is not here yet may be there then: no error. But a
 * shared file system is the rule, and a misspelt name would be found after hours in the
 * queue. For a name without a directory the job may have another PATH, by its modules. */
static void warn_of_no_program(const struct opts *opts)
{
    const char *name = opts->argv[0];
    if (opts->module || opts->container ||
        (!strchr(name, '/') && !interpreter_knows(name)))
        return;
    OWNED char *path = interpreter_path(opts, name);
    if (access(path, F_OK) < 0)
        log_warn("there is no '%s' here; the job needs it on its nodes", path);
}

/* The file that our standard output is redirected to, or NULL; the caller frees. */
static char *output_file(void)
{
    struct stat st;
    char path[PATH_MAX];
    if (fstat(STDOUT_FILENO, &st) < 0 || !S_ISREG(st.st_mode))
        return NULL;
    ssize_t n = readlink("/proc/self/fd/1", path, sizeof path - 1);
    return n > 0 ? xstrndup(path, (size_t)n) : NULL;
}

int script_run(const struct opts *opts, char *const *words, struct ddp_err *err)
{
    SCOPED(python_env_finish) struct python_env env = {0};
    python_env_find(ambient_launcher_env, &env);
    OWNED char *file = opts->submit ? NULL : output_file();
    struct script_place place = {.ddprun = found_anyway(words[0]) ? NULL : words[0],
                                 .python_env = &env,
                                 .file = file,
                                 .words = words};
    SCOPED(script_finish) struct script s = {0};
    TRY(script_make(opts, &place, &s, err));
    if (s.site->closed)
        log_warn("%s was closed in %s", s.site->title ? s.site->title : s.site->name,
                 s.site->closed);
    warn_of_no_environment(opts, s.site, &env);
    warn_of_no_program(opts);
    if (opts->submit && !opts->dry_run) {
        OWNED char *id = submit(s.site->scheduler, &s.submit, s.text, err);
        if (!id)
            return -1;
        puts(id);
    } else {
        fputs(s.text, stdout);
    }
    return fflush(stdout) == 0 ? 0 : err_errno(err, "cannot write");
}
