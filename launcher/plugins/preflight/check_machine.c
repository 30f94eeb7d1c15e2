/* launcher/plugins/preflight/check_machine.c - user, clock, CPUs, GPUs, limits */
#include "launcher/plugins/preflight/check.h"

#include "common/cgroup.h"
#include "common/duration.h"
#include "common/mem.h"
#include "launcher/place/sysview.h"

#include <dirent.h>
#include <pwd.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/sysinfo.h>
#include <unistd.h>

void check_user(const struct check_ctx *ctx)
{
    char key[32];
    const struct passwd *pw = getpwuid(getuid());
    snprintf(key, sizeof key, "%u", (unsigned)getuid());
    found_value(ctx, NULL, key, "%s (uid %s)", pw ? pw->pw_name : "without a name", key);
}

/* Wall clock minus monotonic clock; the launcher knows the offset between the monotonic
 * clocks from its heartbeats. */
void check_clock(const struct check_ctx *ctx)
{
    found_number(ctx, wall_ns() - now_ns());
}

void check_cpus(const struct check_ctx *ctx)
{
    SCOPED(idset_finish) struct idset cpus = {0};
    struct sysinfo info;
    char key[64];
    sysview_cpus(&cpus);
    int n = (int)idset_count(&cpus), quota = cgroup_cpus(ctx->root);
    double gib = sysinfo(&info) == 0
                     ? (double)info.totalram * info.mem_unit / (double)(1 << 30)
                     : 0;
    snprintf(key, sizeof key, "%d CPU%s, %.0f GiB", n, n == 1 ? "" : "s", gib);
    found_value(ctx, NULL, key, "%s", key);
    if (quota > 0 && quota < n)
        found_remark(ctx, "its control group allows %d of %d CPUs", quota, n);
}

/* --- GPUs --------------------------------------------------------------------------- */

/* The text after `label` in a file of "Label: text" lines; malloc'ed, or NULL. */
static char *field_of(const char *path, const char *label)
{
    char line[512];
    char *text = NULL;
    SCOPED(close_file) FILE *f = fopen(path, "re");
    while (f && !text && fgets(line, sizeof line, f)) {
        if (strncmp(line, label, strlen(label)) != 0)
            continue;
        const char *p = line + strlen(label);
        p += strspn(p, " \t:");
        text = xstrndup(p, strcspn(p, "\r\n"));
    }
    return text;
}

/* "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.104.05  Sat ..." */
static char *driver_version(const char *root)
{
    OWNED char *path = xasprintf("%s/proc/driver/nvidia/version", root);
    OWNED char *line = field_of(path, "NVRM version");
    for (char *save, *w = line ? strtok_r(line, " ", &save) : NULL; w;
         w = strtok_r(NULL, " ", &save)) {
        if (w[strspn(w, "0123456789.")] == '\0' && strchr(w, '.'))
            return xstrdup(w);
    }
    return NULL;
}

/* The paths of what is in the folder `name` below `root`. */
static struct strv list_folder(const char *root, const char *name)
{
    struct strv paths = {0};
    OWNED char *folder = xasprintf("%s/%s", root, name);
    SCOPED(close_folder) DIR *d = opendir(folder);
    for (struct dirent *e; d && (e = readdir(d));) {
        if (e->d_name[0] != '.')
            strv_pushf(&paths, "%s/%s", folder, e->d_name);
    }
    return paths;
}

/* The model of the first GPU; the GPUs of a host are assumed alike. */
static char *model_of_gpus(const char *root)
{
    SCOPED(strv_finish) struct strv gpus = list_folder(root, "proc/driver/nvidia/gpus");
    char *model = NULL;
    for (size_t i = 0; i < gpus.n && !model; i++) {
        OWNED char *path = xasprintf("%s/information", gpus.v[i]);
        model = field_of(path, "Model");
    }
    return model;
}

/* NVIDIA display and 3D controllers on the PCI bus, with or without a driver. */
static int count_pci_gpus(const char *root)
{
    SCOPED(strv_finish) struct strv devices = list_folder(root, "sys/bus/pci/devices");
    int n = 0;
    for (size_t i = 0; i < devices.n; i++) {
        OWNED char *vendor_file = xasprintf("%s/vendor", devices.v[i]);
        OWNED char *class_file = xasprintf("%s/class", devices.v[i]);
        OWNED char *vendor = field_of(vendor_file, "0x");
        OWNED char *class = field_of(class_file, "0x");
        n += vendor && class && strcmp(vendor, "10de") == 0 &&
             strncmp(class, "03", 2) == 0;
    }
    return n;
}

void check_gpus(const struct check_ctx *ctx)
{
    SCOPED(strv_finish) struct strv seen = {0};
    sysview_gpus(ctx->root, strv_env_get(ctx->env, "CUDA_VISIBLE_DEVICES"), &seen);
    int n = (int)seen.n, there = count_pci_gpus(ctx->root);
    OWNED char *driver = driver_version(ctx->root), *model = model_of_gpus(ctx->root);
    OWNED char *text = n == 0
                           ? xstrdup("none")
                           : xasprintf("%d x %s, driver %s", n, model ? model : "NVIDIA",
                                       driver ? driver : "of unknown version");
    found_value(ctx, NULL, text, "%s", text);
    if (there > 0 && !driver)
        found_problem(ctx,
                      "%d NVIDIA GPU%s on its PCI bus, but no driver is loaded; "
                      "see 'dmesg | grep -i nvrm' there",
                      there, there == 1 ? "" : "s");
    else if (n > 0 && !driver)
        found_remark(ctx, "the driver's version cannot be read there");
}

/* --- limits ------------------------------------------------------------------------- */

/* A count, or with `bytes` an amount. */
static void print_limit(rlim_t v, bool bytes, char text[32])
{
    unsigned long long n = v;
    if (v == RLIM_INFINITY)
        strcpy(text, "unlimited");
    else if (bytes && n >= 1 << 20)
        snprintf(text, 32, "%llu MiB", n >> 20);
    else
        snprintf(text, 32, bytes ? "%llu bytes" : "%llu", n);
}

static bool has_infiniband(const char *root)
{
    SCOPED(strv_finish) struct strv cards = list_folder(root, "sys/class/infiniband");
    return cards.n > 0;
}

/* The limits of ranks. The agent raises its own soft limit of open files up to the hard
 * one and gives ranks the soft limit it was started with: so the hard one is checked. */
void check_limits(const struct check_ctx *ctx)
{
    enum { FILES = 1024, STACK = 1 << 20 };
    struct rlimit files, procs, stack, memlock, size;
    char f[32], p[32], s[32], m[32];
    getrlimit(RLIMIT_NOFILE, &files);
    getrlimit(RLIMIT_NPROC, &procs);
    getrlimit(RLIMIT_STACK, &stack);
    getrlimit(RLIMIT_MEMLOCK, &memlock);
    getrlimit(RLIMIT_AS, &size);
    print_limit(files.rlim_max, false, f);
    print_limit(procs.rlim_cur, false, p);
    print_limit(stack.rlim_cur, true, s);
    print_limit(memlock.rlim_cur, true, m);
    OWNED char *text =
        xasprintf("%s files, %s processes, stack %s, locked memory %s", f, p, s, m);
    found_value(ctx, NULL, text, "%s", text);
    if (files.rlim_max < FILES)
        found_problem(ctx,
                      "only %s open files are allowed there (ulimit -Hn); %d or "
                      "more are needed",
                      f, FILES);
    if (stack.rlim_cur != RLIM_INFINITY && stack.rlim_cur < STACK)
        found_problem(ctx, "the stack is limited to %s there; ulimit -s 8192", s);
    if (size.rlim_cur != RLIM_INFINITY)
        found_problem(ctx, "address space is limited there (ulimit -v): CUDA and PyTorch "
                           "reserve far more than they use; ulimit -v unlimited");
    if (memlock.rlim_cur != RLIM_INFINITY && has_infiniband(ctx->root))
        found_problem(ctx,
                      "locked memory is limited to %s there, and it has "
                      "InfiniBand: RDMA fails; ulimit -l unlimited (limits.conf)",
                      m);
}
