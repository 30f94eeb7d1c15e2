/* launcher/agent/elf_needs.c - see elf_needs.h
 *
 * Four small reads: ELF header, program headers, dynamic section, strings. The file is
 * untrusted input: every offset and size is checked.
 */
#include "launcher/agent/elf_needs.h"

#include "common/mem.h"

#include <elf.h>
#include <fcntl.h>
#include <link.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* More than any program has: a file that exceeds them is treated as broken. */
enum { HEADERS_MAX = 512, DYNAMIC_MAX = 64 << 10, STRINGS_MAX = 4 << 20 };

typedef ElfW(Ehdr) head_t;
typedef ElfW(Phdr) segment_t;
typedef ElfW(Dyn) dynamic_t;

static void *read_part(int fd, uint64_t at, uint64_t size)
{
    char *p = malloc(size + 1);
    if (!p)
        return NULL;
    p[size] = '\0';
    if (pread(fd, p, size, (off_t)at) == (ssize_t)size)
        return p;
    free(p);
    return NULL;
}

static bool is_ours(const head_t *h)
{
    const uint16_t one = 1;
    unsigned char order = *(const unsigned char *)&one ? ELFDATA2LSB : ELFDATA2MSB;
    unsigned char width = sizeof(void *) == 8 ? ELFCLASS64 : ELFCLASS32;
    return memcmp(h->e_ident, ELFMAG, SELFMAG) == 0 && h->e_ident[EI_CLASS] == width &&
           h->e_ident[EI_DATA] == order && h->e_phentsize == sizeof(segment_t) &&
           h->e_phnum > 0 && h->e_phnum <= HEADERS_MAX;
}

/* The file offset that is mapped at address `addr`; 0: none. */
static uint64_t file_offset(const segment_t *seg, size_t n, uint64_t addr)
{
    for (size_t i = 0; i < n; i++) {
        if (seg[i].p_type == PT_LOAD && addr >= seg[i].p_vaddr &&
            addr - seg[i].p_vaddr < seg[i].p_filesz)
            return seg[i].p_offset + (addr - seg[i].p_vaddr);
    }
    return 0;
}

static void take_strings(const dynamic_t *dyn, size_t n, const char *strings, size_t size,
                         struct elf_needs *needs)
{
    for (size_t i = 0; i < n && dyn[i].d_tag != DT_NULL; i++) {
        if (dyn[i].d_un.d_val >= size)
            continue;
        const char *text = strings + dyn[i].d_un.d_val;
        if (dyn[i].d_tag == DT_NEEDED)
            strv_push(&needs->names, text);
        if (dyn[i].d_tag == DT_RUNPATH || (dyn[i].d_tag == DT_RPATH && !needs->runpath)) {
            free(needs->runpath);
            needs->runpath = xstrdup(text);
        }
    }
}

static int read_dynamic(int fd, const segment_t *seg, size_t nseg, const segment_t *where,
                        struct elf_needs *needs)
{
    uint64_t strtab = 0, size = 0;
    size_t n = where->p_filesz / sizeof(dynamic_t);
    if (where->p_filesz > DYNAMIC_MAX)
        return -1;
    dynamic_t *dyn = read_part(fd, where->p_offset, where->p_filesz);
    for (size_t i = 0; dyn && i < n && dyn[i].d_tag != DT_NULL; i++) {
        if (dyn[i].d_tag == DT_STRTAB)
            strtab = file_offset(seg, nseg, dyn[i].d_un.d_ptr);
        if (dyn[i].d_tag == DT_STRSZ)
            size = dyn[i].d_un.d_val;
    }
    bool good = strtab > 0 && size > 0 && size <= STRINGS_MAX;
    char *strings = good ? read_part(fd, strtab, size) : NULL;
    if (strings)
        take_strings(dyn, n, strings, size, needs);
    good = strings != NULL;
    free(strings);
    free(dyn);
    return good ? 0 : -1;
}

static int read_open(int fd, struct elf_needs *needs)
{
    head_t head;
    if (pread(fd, &head, sizeof head, 0) != (ssize_t)sizeof head || !is_ours(&head))
        return -1;
    segment_t *seg = read_part(fd, head.e_phoff, head.e_phnum * sizeof *seg);
    int rc = -1;
    for (size_t i = 0; seg && i < head.e_phnum; i++) {
        if (seg[i].p_type == PT_DYNAMIC) {
            rc = read_dynamic(fd, seg, head.e_phnum, &seg[i], needs);
            break;
        }
    }
    free(seg);
    return rc;
}

int elf_read(const char *path, struct elf_needs *needs)
{
    *needs = (struct elf_needs){0};
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return -1;
    int rc = read_open(fd, needs);
    close(fd);
    if (rc < 0)
        elf_finish(needs);
    return rc;
}

void elf_finish(struct elf_needs *needs)
{
    strv_finish(&needs->names);
    free(needs->runpath);
    *needs = (struct elf_needs){0};
}

/* One directory of a list; $ORIGIN is the program's directory. */
static char *in_folder(const char *path, const char *folder, size_t len, const char *name)
{
    static const char *const origins[] = {"$ORIGIN", "${ORIGIN}"};
    const char *slash = strrchr(path, '/');
    char *file = NULL;
    for (size_t i = 0; i < ARRAY_LEN(origins) && !file; i++) {
        size_t n = strlen(origins[i]);
        if (len >= n && memcmp(folder, origins[i], n) == 0)
            file = xasprintf("%.*s%.*s/%s", slash ? (int)(slash - path) : 1,
                             slash ? path : ".", (int)(len - n), folder + n, name);
    }
    if (!file)
        file = xasprintf("%.*s/%s", (int)len, folder, name);
    if (access(file, R_OK) == 0)
        return file;
    free(file);
    return NULL;
}

char *elf_find(const char *path, const struct elf_needs *needs, const char *library_path,
               const char *name)
{
    static const char system[] = "/lib/" MULTIARCH ":/usr/lib/" MULTIARCH
                                 ":/lib64:/usr/lib64:/lib:/usr/lib:/usr/local/lib";
    const char *lists[] = {needs->runpath, library_path, system};
    for (size_t i = 0; i < ARRAY_LEN(lists); i++) {
        for (const char *p = lists[i]; p && *p; p += *p == ':') {
            size_t len = strcspn(p, ":");
            char *file = len > 0 ? in_folder(path, p, len, name) : NULL;
            if (file)
                return file;
            p += len;
        }
    }
    return NULL;
}
