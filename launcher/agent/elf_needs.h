/* launcher/agent/elf_needs.h - which libraries a program names, read from its own file
 *
 * What ldd would say, without running anything: the DT_NEEDED entries and where the
 * program wants them looked for. Programs of this machine's word size and byte order.
 */
#ifndef LAUNCHER_AGENT_ELF_NEEDS_H
#define LAUNCHER_AGENT_ELF_NEEDS_H

#include "common/strv.h"

struct elf_needs {
    struct strv names; /* DT_NEEDED: "libmpi.so.40" */
    char *runpath;     /* owned: DT_RUNPATH, else DT_RPATH; NULL: none */
};

/* 0; -1: it is no such program, is linked statically, or cannot be read. */
int elf_read(const char *path, struct elf_needs *needs);
void elf_finish(struct elf_needs *needs);

/* Where the loader would find `name` for a program at `path`: its runpath, `library_path`
 * (LD_LIBRARY_PATH, may be NULL), then the system's folders, but not its cache.
 * malloc'ed; NULL: in none of them. */
char *elf_find(const char *path, const struct elf_needs *needs, const char *library_path,
               const char *name);

#endif
