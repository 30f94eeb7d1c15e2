/* launcher/cli/cli.c - see cli.h */
#define LOG_SUBSYS "options"
#include "launcher/cli/cli.h"

#include "common/err.h"
#include "common/log.h"
#include "common/mem.h"
#include "common/number.h"
#include "launcher/cli/defaults.h"
#include "launcher/cli/foreign.h"
#include "launcher/cli/interpreter.h"
#include "launcher/cli/programs.h"
#include "launcher/cli/spelling.h"
#include "launcher/cli/words.h"
#include "launcher/spawned.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* of --health-timeout; hosts without --max-np; horovodrun's --reset-limit and
 * --elastic-timeout */
enum { HEALTH_MS = 30000, HOSTS_MOST = 256, RESETS = 1000, ELASTIC_WAIT_MS = 600000 };

static void set_defaults(struct opts *opts)
{
    *opts = (struct opts){
        .rank_names = NAMES_ALL,
        .mpi = MPI_AUTO,
        .node_rank = -1,
        .tree_width = 32,
        .ssh_window = 64,
        .start_timeout_ms = 60000,
        .preload = "",
        .node_timeout_ms = 60000,
        .discovery_interval_ms = 1000,
        .discovery_timeout_ms = 30000,
        .hang_after_ms = 300000,
        .health_timeout_ms = HEALTH_MS,
        .grace_ms = 5000,
        .gpus_per_node = -1,
        .scaling_dir = "scaling",
    };
}

static bool wants_script(const struct opts *opts)
{
    return opts->script != SCHED_NONE || opts->submit;
}

/* --min-np and --max-np as numbers of hosts. Without --nproc-per-node the slots decide,
 * and Horovod's ranks need not fill a host. */
static int count_hosts(struct opts *o, struct ddp_err *err)
{
    int least = o->min_np ? o->min_np : o->np ? o->np : 1, per = o->per_node;
    if (o->min_np == 0 && o->max_np == 0)
        return 0;
    if (o->nnodes > 0)
        return err_set(err, "--nnodes, and --min-np or --max-np: leave one out");
    if (o->max_np > 0 && least > o->max_np)
        return err_set(err, "--max-np %d is less than %s %d", o->max_np,
                       o->min_np ? "--min-np" : "-np", least);
    if (per == 0 && wants_script(o))
        return err_set(err, "--min-np and --max-np in a batch script need "
                            "--nproc-per-node, for its number of hosts");
    if (per == 0 || o->elastic == ELASTIC_HOROVOD) {
        o->start_np = o->np > least ? o->np : least;
        o->min_np = least;
        o->min_nnodes = 1;
        o->nnodes = HOSTS_MOST;
        o->np = 0;
        return 0;
    }
    o->min_nnodes = (least + per - 1) / per;
    o->nnodes = o->max_np ? o->max_np / per : HOSTS_MOST;
    if (o->min_nnodes > o->nnodes)
        return err_set(err,
                       "at least %d and at most %d ranks: with %d on each host, no "
                       "number of hosts fits",
                       least, o->nnodes * per, per);
    o->min_nnodes = o->min_nnodes < o->nnodes ? o->min_nnodes : 0;
    o->np = o->min_np = o->max_np = 0;
    return 0;
}

/* horovodrun's jobs are elastic where hosts come and go, with its defaults; without
 * --reset-limit it replaces any number of ranks. */
static void be_horovodrun(struct opts *o)
{
    if (!o->as || !(o->as->programs & HOROVODRUN) ||
        !(o->discovery || o->min_np || o->max_np))
        return;
    o->elastic = ELASTIC_HOROVOD;
    o->max_restarts = o->max_restarts ? o->max_restarts : RESETS;
    o->node_wait_ms = o->node_wait_ms ? o->node_wait_ms : ELASTIC_WAIT_MS;
    if (o->nnodes > 0)
        return;
    o->min_np = o->min_np ? o->min_np : o->np;
    o->max_np = o->max_np ? o->max_np : o->np;
}

static int check_discovery(const struct opts *opts, struct ddp_err *err)
{
    const char *beside = opts->hostfile         ? "--hostfile"
                         : opts->hosts          ? opts_hosts_by(opts)
                         : opts->node_rank >= 0 ? "--node-rank"
                                                : NULL;
    if (!opts->discovery)
        return 0;
    if (beside)
        return err_set(err, "%s and --host-discovery-script: the script names the hosts",
                       beside);
    if (opts->alloc && strcmp(opts->alloc, "discovery") != 0)
        return err_set(err,
                       "--alloc %.40s and --host-discovery-script: the script would not "
                       "be asked; leave one out",
                       opts->alloc);
    if (opts->nnodes == 0)
        return err_set(err, "--host-discovery-script needs --nnodes N, or MIN:MAX");
    return 0;
}

/* Options of the command line that have an effect only with another one, and pairs of
 * which one would be ignored. Those from elsewhere (defaults.h) are for all commands, and
 * may be without effect in this one. */
static int check_companions(const struct opts *o, struct ddp_err *err)
{
    const struct {
        const char *option;
        bool has;
        const char *with;
    } needs[] = {
        {"metric", o->ui || o->metrics, "--ui or --metrics"},
        {"on-hang", o->on_hang == ON_HANG_REPORT || o->hang_after_ms,
         "--hang-after TIME"},
        {"on-hang", o->on_hang != ON_HANG_RESTART || o->max_restarts, "--max-restarts N"},
        {"max-no-progress", o->max_restarts, "--max-restarts N"},
        {"restart-delay", o->max_restarts, "--max-restarts N"},
        {"progress-file", o->max_no_progress || o->restart_delay_ms,
         "--max-no-progress K or --restart-delay TIME"},
        {"container-engine", o->container, "--container IMAGE"},
        {"discovery-interval", o->discovery || o->hostfile,
         "--host-discovery-script or --hostfile"},
        {"discovery-timeout", o->discovery, "--host-discovery-script COMMAND"},
        {"health-timeout", o->health_check, "--health-check COMMAND"},
        {"data-dir", o->fetch_data, "--fetch-data NAME"},
        {"data-mirror", o->fetch_data, "--fetch-data NAME"},
        {"data-sets", o->fetch_data, "--fetch-data NAME"},
        {"scaling-dir", o->scaling, "--scaling SIZES"},
    };
    static const struct {
        const char *a, *b, *shown;
    } excluded[] = {{"preload", "no-preload", "--preload and --no-preload"},
                    {"m", "no-python", "-m and --no-python"}};
    for (size_t i = 0; i < ARRAY_LEN(needs); i++) {
        if (!needs[i].has && opts_given(o, needs[i].option))
            return err_set(err, "--%s needs %s (try ddprun --help)", needs[i].option,
                           needs[i].with);
    }
    for (size_t i = 0; i < ARRAY_LEN(excluded); i++) {
        if (opts_given(o, excluded[i].a) && opts_given(o, excluded[i].b))
            return err_set(err, "%s: leave one out (try ddprun --help)",
                           excluded[i].shown);
    }
    return 0;
}

/* The port of --master-addr is --master-port, too; one on the command line precedes those
 * from elsewhere. */
static int choose_master_port(struct opts *o, struct ddp_err *err)
{
    bool addr = o->addr_port > 0 && opts_given(o, "master-addr"),
         port = opts_given(o, "master-port");
    if (addr && port && o->addr_port != o->master_port)
        return err_set(err,
                       "--master-addr %s:%d and --master-port %d contradict each other; "
                       "leave one port out (try ddprun --help)",
                       o->master_addr, o->addr_port, o->master_port);
    if (o->addr_port > 0 && !port)
        o->master_port = o->addr_port;
    return 0;
}

/* Checks after parsing: options that depend on or exclude each other. */
static int check_options(struct opts *opts, const char *hosts_option,
                         const char *script_option, struct ddp_err *err)
{
    int *means = wants_script(opts) ? &opts->nnodes : &opts->per_node;
    if (opts->letter_n && *means && *means != opts->letter_n)
        return err_set(err, "-N %d and %s %d contradict each other (try ddprun --help)",
                       opts->letter_n,
                       wants_script(opts) ? "--nnodes" : "--nproc-per-node", *means);
    if (opts->letter_n)
        *means = opts->letter_n;
    if (wants_script(opts) && hosts_option)
        return err_set(err,
                       "%s and a batch script: the scheduler chooses the hosts; "
                       "leave it out",
                       hosts_option);
    if (wants_script(opts) && opts->per_cpu)
        return err_set(err, "--nproc-per-node cpu counts the CPUs of this machine, and a "
                            "batch script is for others; give their number");
    if ((wants_script(opts) || opts->scaling) && opts->apps.n > 0)
        return err_set(err, "a batch script, or --scaling, runs one program");
    if (opts->scaling && (opts->np || opts->min_nnodes > 0))
        return err_set(err, "--scaling sets the number of ranks; leave out %s",
                       opts->np ? "-np" : "--nnodes MIN:MAX");
    const char *task = opts->preflight    ? "--preflight"
                       : opts->fetch_data ? "--fetch-data"
                                          : NULL;
    const char *other = opts->dry_run ? "--dry-run" : opts->scaling ? "--scaling" : NULL;
    if (task && other)
        return err_set(err, "%s and %s: leave one out (try ddprun --help)", task, other);
    if (opts->min_nnodes > 0 && opts->np)
        return err_set(err, "--nnodes MIN:MAX and -np: the hosts decide how many ranks "
                            "there are; use --nproc-per-node");
    if (opts->pty == PTY_ON && (opts->tag_output == TAG_ON || opts->timestamp_output ||
                                opts->input == INPUT_NONE))
        return err_set(err, "--pty and %s: a terminal is passed on as it is",
                       opts->tag_output == TAG_ON ? "--tag-output"
                       : opts->timestamp_output   ? "--timestamp-output"
                                                  : "--stdin none");
    if (!wants_script(opts) && script_option)
        return err_set(
            err, "%s is for batch scripts: add --script " SCHEDULER_NAMES ", or --submit",
            script_option);
    return 0;
}

static bool wants_program(const struct opts *opts)
{
    return !opts->show_env && !opts->preflight && !opts->top && !opts->list_sites &&
           !opts->fetch_data && !opts->report_on;
}

static int check_rest(const struct opts *opts, struct ddp_err *err)
{
    int np;
    if (wants_program(opts) && opts->argv[0] && !opts->np &&
        number_whole(opts->argv[0], 1, INT_MAX, &np) && opts->argv[1] &&
        !program_in_path(getenv("PATH"), opts->argv[0]))
        return err_set(
            err, "'%d' is no program; -np %d starts so many ranks (try ddprun --help)",
            np, np);
    const char *nothing = opts->fetch_data   ? "--fetch-data"
                          : opts->report_on  ? "--report-on"
                          : opts->list_sites ? "--list-sites"
                                             : NULL;
    if (nothing && opts->argv[0])
        return err_set(err,
                       "%s starts nothing, so '%.80s' cannot follow (try ddprun --help)",
                       nothing, opts->argv[0]);
    if (opts->top && opts->argv[0] && opts->argv[1])
        return err_set(err, "--top shows one job: '%.80s' cannot follow", opts->argv[1]);
    return 0;
}

/* Options from elsewhere (defaults.h). */
static int take_defaults(const char *origin, const struct strv *words, void *arg,
                         struct ddp_err *err)
{
    struct opts *opts = arg;
    const struct foreign_name *as = opts->as;
    struct strv line = {0};
    opts->as = strcmp(origin, DEFAULTS_PET) == 0     ? foreign_name("torchrun")
               : as && strcmp(origin, as->name) == 0 ? as
                                                     : NULL;
    strv_push(&line, origin);
    bool dashes = false;
    for (size_t i = 0; i < words->n; i++) {
        dashes = dashes || *words->v[i] == '-';
        char *word = dashes ? xstrdup(words->v[i]) : words_setting(opts, words->v[i]);
        if (word)
            strv_push_nodup(&line, word);
    }
    struct reading r = {.argv = line.v, .argc = (int)line.n, .defaults = true};
    int rc = words_read(&r, opts, err);
    if (rc == 0 && r.i < r.argc)
        rc = err_set(err, "'%.80s' is not an option", line.v[r.i]);
    if (rc < 0)
        err_prefix(err, "%s", origin);
    OWNED char *text = shell_join(line.v + 1);
    strv_pushf(&opts->origins, "%s: %s", origin, text);
    for (size_t i = 0; i < line.n; i++) /* the options point into them */
        strv_push_nodup(&opts->texts, line.v[i]);
    free(line.v);
    strv_finish(&r.refused);
    opts->as = as;
    return rc;
}

static int take_variables(const char *origin, const struct strv *words, void *arg,
                          struct ddp_err *err)
{
    struct opts *opts = arg;
    for (size_t i = 0; i < words->n; i++) {
        strv_push(&opts->export_env, words->v[i]);
        strv_push(&opts->passed, "-x");
        strv_push(&opts->passed, words->v[i]);
    }
    return 0;
}

/* Called as another launcher: by its name, or with --as before everything else. */
static int read_as(struct reading *r, struct opts *opts, struct ddp_err *err)
{
    static const char option[] = "--as=";
    const char *word = r->argc > 1 ? r->argv[1] : "", *name;
    opts->as = r->argc > 0 ? foreign_name(r->argv[0]) : NULL;
    if (strncmp(word, option, strlen(option) - 1) == 0 && (!word[4] || word[4] == '=')) {
        r->i = 1;
        name = word[4] ? word + strlen(option) : words_next(r, word, "a launcher", err);
        r->argv += r->i;
        r->argc -= r->i;
        opts->as = name ? foreign_name(name) : NULL;
        if (name && !opts->as)
            err_set(err, "--as is " FOREIGN_NAMES ", not '%.80s' (try ddprun --help)",
                    name);
        if (!opts->as)
            return -1;
    }
    const char *command = opts->as ? opts->as->command : NULL;
    if (!command)
        return 0;
    name = opts->as->name;
    if (r->argc < 2 || strcmp(r->argv[1], command) != 0)
        return err_set(err, "'%s%s%.80s' starts no program; only '%s %s' does", name,
                       r->argc < 2 ? "" : " ", r->argc < 2 ? "" : r->argv[1], name,
                       command);
    r->argv++;
    r->argc--;
    return 0;
}

int cli_parse(int argc, char **argv, struct opts *opts, struct ddp_err *err)
{
    struct reading r = {.argv = argv, .argc = argc};
    set_defaults(opts);
    int rc = read_as(&r, opts, err);
    if (rc == 0 && opts->as && opts->as->defaults) {
        SCOPED(strv_finish) struct strv own = {0};
        strv_push(&own, opts->as->defaults);
        rc = take_defaults(opts->as->name, &own, opts, err);
    }
    if (rc == 0 && opts->as && opts->as->programs & DEEPSPEED)
        rc = defaults_deepspeed(take_variables, opts, err);
    if (rc == 0)
        rc = defaults_each(take_defaults, opts, err);
    if (rc == 0)
        rc = words_read(&r, opts, err);
    strv_finish(&r.refused);
    if (rc != 0)
        return rc;
    opts->argv = r.argv + r.i;
    bool sized = opts_given(opts, "nproc-per-node") || opts_given(opts, "N") ||
                 (opts_given(opts, "map-by") && opts->map_by == MAP_PPR);
    if (sized && !opts_given(opts, "np"))
        opts->np = 0; /* a default must not contradict the command line */
    if (opts->app) {
        if (r.i < r.argc)
            return err_set(err, "--app and '%.80s': the programs are in the file",
                           *opts->argv);
        if ((rc = programs_read_file(&r, opts, err)) != 0)
            return rc;
    }
    if (r.i == r.argc && wants_program(opts))
        return err_set(err, "no program given (try ddprun --help)");
    if (check_rest(opts, err) < 0 || (!opts->app && programs_find(opts, err) < 0))
        return -1;
    if (spawned_take(opts)) /* the other ddprun has made the checks that follow */
        return 0;
    be_horovodrun(opts);
    if (opts->rank_names & NAMES_PADDLE && opts->store == STORE_AUTO)
        opts->store = STORE_RANK0; /* PaddlePaddle's store has a protocol of its own */
    if (opts->as && opts->node_rank == 0 && opts->nnodes == 0)
        opts->nnodes = 1; /* the default of torchrun and accelerate */
    if (count_hosts(opts, err) == 0 && check_discovery(opts, err) == 0 &&
        check_companions(opts, err) == 0 && choose_master_port(opts, err) == 0 &&
        check_options(opts, r.hosts_option, r.script_option, err) == 0)
        return 0;
    OWNED char *why = xstrdup(err->text);
    OWNED char *origins = cli_origins(opts);
    return err_set(err, "%s%s", why, origins);
}

static void warn_of_ignored(const struct opts *opts)
{
    OWNED char *names = shell_join(opts->ignored.v);
    if (opts->ignored.n > 0)
        log_warn("ignored, as they have no effect in ddprun: %s", names);
}

/* "-np 1 a : b" runs "a" with the arguments ": b". */
static void warn_of_colon(const struct opts *opts)
{
    char *const *word = opts->argv;
    while (*word && (strcmp(*word, ":") != 0 || !word[1]))
        word++;
    if (*word && opts->np && !opts->end_marked)
        log_warn("':' was passed to the program before it; write ': -np N PROGRAM' for "
                 "another program, or '--' before the first one");
}

/* What 'accelerate config' wrote, which 'accelerate launch' reads. */
static void warn_of_accelerate_config(const struct opts *opts)
{
    const char *hf = getenv("HF_HOME"), *cache = getenv("XDG_CACHE_HOME"),
               *home = getenv("HOME");
    if (!opts->as || !(opts->as->programs & ACCELERATE))
        return;
    OWNED char *folder = hf      ? xstrdup(hf)
                         : cache ? xasprintf("%s/huggingface", cache)
                                 : xasprintf("%s/.cache/huggingface", home ? home : "");
    OWNED char *path = xasprintf("%s/accelerate/default_config.yaml", folder);
    if (access(path, F_OK) == 0)
        log_warn("'%s' is not read: give its values as options", path);
}

void cli_warn(const struct opts *opts)
{
    bool placed = opts->np || opts->per_node || opts->hosts || opts->hostfile;
    const char *late =
        wants_script(opts) ? "submit script site" : "np nproc-per-node hostfile";
    warn_of_ignored(opts);
    warn_of_colon(opts);
    warn_of_accelerate_config(opts);
    if (opts->end_marked) /* after "--" everything is the program's */
        return;
    if (!wants_script(opts) && placed) /* the program may be a launcher itself */
        return;
    const struct foreign_name *other = foreign_started(opts->argv);
    if (other) {
        log_warn("%s starts processes of its own; 'ddprun --as %s ...' is "
                 "ddprun with its command line",
                 other->name, other->name);
        return;
    }
    for (char *const *word = opts->argv + 1; *opts->argv && *word; word++) {
        size_t dashes = strspn(*word, "-"), len = strcspn(*word, "=");
        bool option = dashes == 2 || strcmp(*word, "-np") == 0;
        if (option && spelling_is(late, *word + dashes, len - dashes))
            log_warn(
                "'%.*s' follows the program and was passed to %s; put ddprun's options "
                "before it",
                (int)len, *word, opts->argv[0]);
    }
}

char *cli_origins(const struct opts *opts)
{
    char *text = xstrdup("");
    for (size_t i = 0; i < opts->origins.n; i++) {
        const char *origin = opts->origins.v[i];
        size_t len = opts->as ? strlen(opts->as->name) : 0; /* its own default */
        if (len == 0 || strncmp(origin, opts->as->name, len) != 0 || origin[len] != ':')
            xappendf(&text, "; %s%s", *text ? "" : "options are also from ", origin);
    }
    return text;
}

void opts_finish(struct opts *opts)
{
    strv_finish(&opts->export_env);
    strv_finish(&opts->passed);
    strv_finish(&opts->spawn_keys);
    strv_finish(&opts->given);
    strv_finish(&opts->texts);
    strv_finish(&opts->ignored);
    strv_finish(&opts->origins);
    strv_finish(&opts->interpreted);
    strv_finish(&opts->apps);
    free(opts->interpreter);
    *opts = (struct opts){0};
}
