/* launcher/agent/elf_needs.h - the shared libraries that an ELF program needs
 *
 * The DT_NEEDED entries and the run path, like ldd but without running anything. Only
 * programs of this machine's word size and byte order.
 */
#ifndef LAUNCHER_AGENT_ELF_NEEDS_H
#define LAUNCHER_AGENT_ELF_NEEDS_H

#include "common/strv.h"

struct elf_needs {
    struct strv names; /* DT_NEEDED: "libmpi.so.40" */
    char *runpath;     /* owned: DT_RUNPATH, else DT_RPATH; NULL: none */
};

/* 0; -1: not such a program, linked statically, or unreadable. */
int elf_read(const char *path, struct elf_needs *needs);
void elf_finish(struct elf_needs *needs);

/* Where the loader would find `name` for a program at `path`: in its runpath,
 * `library_path` (LD_LIBRARY_PATH, may be NULL), then the system's directories; the
 * loader's cache is not read. malloc'ed; NULL: in none of them. */
char *elf_find(const char *path, const struct elf_needs *needs, const char *library_path,
               const char *name);

#endif
