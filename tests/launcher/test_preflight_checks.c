/* --preflight: the check of GPUs, on a tree of files as in /proc and /sys */
#include "common/mem.h"
#include "launcher/plugins/preflight/check.h"
#include "tests/support/suite.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

static char *root;

static void make_root(void)
{
    root = temp_dir();
}

static void free_root(void)
{
    free(root);
}

FIXTURE(make_root, free_root)

static void put(const char *path, const char *text)
{
    char *full = xasprintf("%s%s", root, path);
    put_file(full, text);
    free(full);
}

static void put_driver(void)
{
    put("/proc/driver/nvidia/version",
        "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.104.05  Sat Aug 19\n"
        "GCC version:  gcc version 12.2.0\n");
}

static void put_gpus(unsigned n)
{
    for (unsigned i = 0; i < n; i++) {
        char path[100];
        snprintf(path, sizeof path, "/proc/driver/nvidia/gpus/0000:%02x:00.0/information",
                 i + 1);
        put(path, "Model: \t\t NVIDIA H200\nIRQ:   \t\t 152\n");
    }
}

static void put_pci(const char *address, const char *vendor, const char *class)
{
    char path[100];
    snprintf(path, sizeof path, "/sys/bus/pci/devices/%s/vendor", address);
    put(path, vendor);
    snprintf(path, sizeof path, "/sys/bus/pci/devices/%s/class", address);
    put(path, class);
}

static void keep(const struct msg_finding *f, void *arg)
{
    char **text = arg, *longer;
    longer = xasprintf("%s%s%s\n", *text, f->problem ? f->remark ? "note " : "bad " : "",
                       f->problem ? f->problem : f->value);
    free(*text);
    *text = longer;
}

/* The findings of the check, one per line. */
static char *run_check(const char *visible)
{
    const struct msg_probe probe = {0};
    struct strv env = {0};
    char *text = xstrdup("");
    if (visible)
        strv_env_set(&env, "CUDA_VISIBLE_DEVICES", visible);
    struct check_ctx ctx = {.probe = &probe,
                            .env = &env,
                            .root = root,
                            .check = CHECK_GPUS,
                            .found = keep,
                            .arg = &text};
    check_gpus(&ctx);
    strv_finish(&env);
    return text;
}

static void expect(const char *visible, const char *expected)
{
    char *found = run_check(visible);
    ck_assert_str_eq(found, expected);
    free(found);
}

TEST(a_node_without_gpus)
{
    put_pci("0000:00:1f.0", "0x8086\n", "0x030000\n");
    expect(NULL, "none\n");
}

TEST(gpus_with_their_driver)
{
    put_driver();
    put_gpus(2);
    put_pci("0000:01:00.0", "0x10de\n", "0x030200\n");
    put_pci("0000:02:00.0", "0x10de\n", "0x030200\n");
    expect(NULL, "2 x NVIDIA H200, driver 535.104.05\n");
    expect("1", "1 x NVIDIA H200, driver 535.104.05\n");
}

TEST(gpus_without_a_driver)
{
    put_pci("0000:01:00.0", "0x10de\n", "0x030200\n");
    put_pci("0000:01:00.1", "0x10de\n", "0x040300\n"); /* its audio device */
    expect(NULL, "none\nbad 1 NVIDIA GPU on its PCI bus, but no driver is loaded; see "
                 "'dmesg | grep -i nvrm' there\n");
}

TEST(gpus_of_a_container_that_hides_the_driver)
{
    put("/dev/nvidiactl", "");
    put("/dev/nvidia0", "");
    expect(NULL, "1 x NVIDIA, driver of unknown version\nnote the driver's version "
                 "cannot be read there\n");
}
