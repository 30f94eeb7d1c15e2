/* common/elf_file.h - read the dynamic section of an ELF file
 *
 * The shared libraries it needs and where they are, like ldd but without running
 * anything. Only files of this machine's word size and byte order.
 */
#ifndef COMMON_ELF_FILE_H
#define COMMON_ELF_FILE_H

#include "common/strv.h"

#include <stdbool.h>
#include <stddef.h>

/* All owned; a pointer is NULL when the file has no such entry. */
struct elf {
    struct strv needs; /* DT_NEEDED: "libmpi.so.40" */
    char *runpath;     /* DT_RUNPATH, else DT_RPATH */
    char *interpreter; /* PT_INTERP: the dynamic linker */
    char *strings; /* DT_STRTAB, of nstrings bytes: among others the names of symbols */
    size_t nstrings;
    char *build_id; /* GNU build id, in hex: a hash of the contents, made at link time */
};

/* 0; -1: not such a file, or unreadable. */
int elf_read(const char *path, struct elf *elf);
void elf_finish(struct elf *elf);

/* Does it define or need a symbol of this name, or of one that ends so? */
bool elf_names(const struct elf *elf, const char *symbol);

/* Where the loader would find `name` for a program at `path`: in its runpath,
 * `library_path` (LD_LIBRARY_PATH, may be NULL), then the system's directories; the
 * loader's cache is not read. malloc'ed; NULL: in none of them. */
char *elf_find(const char *path, const struct elf *elf, const char *library_path,
               const char *name);

#endif
