/* common/elf_file.c - see elf_file.h
 *
 * A few small reads: ELF header, program headers, and the segments of interest. The file
 * is untrusted input: every offset and size is checked.
 */
#include "common/elf_file.h"

#include "common/mem.h"

#include <elf.h>
#include <fcntl.h>
#include <link.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* More than any program has: a file that exceeds them is treated as broken. */
enum { HEADERS_MAX = 512, PART_MAX = 64 << 10, STRINGS_MAX = 4 << 20 };

typedef ElfW(Ehdr) head_t;
typedef ElfW(Phdr) segment_t;
typedef ElfW(Dyn) dynamic_t;
typedef ElfW(Nhdr) note_t;

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
                         struct elf *elf)
{
    for (size_t i = 0; i < n && dyn[i].d_tag != DT_NULL; i++) {
        if (dyn[i].d_un.d_val >= size)
            continue;
        const char *text = strings + dyn[i].d_un.d_val;
        if (dyn[i].d_tag == DT_NEEDED)
            strv_push(&elf->needs, text);
        if (dyn[i].d_tag == DT_RUNPATH || (dyn[i].d_tag == DT_RPATH && !elf->runpath)) {
            free(elf->runpath);
            elf->runpath = xstrdup(text);
        }
    }
}

static void read_dynamic(int fd, const segment_t *seg, size_t nseg, const char *part,
                         size_t size, struct elf *elf)
{
    uint64_t at = 0, length = 0;
    const dynamic_t *dyn = (const void *)part;
    size_t n = size / sizeof *dyn;
    for (size_t i = 0; i < n && dyn[i].d_tag != DT_NULL; i++) {
        if (dyn[i].d_tag == DT_STRTAB)
            at = file_offset(seg, nseg, dyn[i].d_un.d_ptr);
        if (dyn[i].d_tag == DT_STRSZ)
            length = dyn[i].d_un.d_val;
    }
    bool good = at > 0 && length > 0 && length <= STRINGS_MAX;
    elf->strings = good ? read_part(fd, at, length) : NULL;
    elf->nstrings = elf->strings ? length : 0;
    if (elf->strings)
        take_strings(dyn, n, elf->strings, length, elf);
}

static void read_notes(const char *part, size_t size, struct elf *elf)
{
    note_t note;
    for (size_t at = 0; at < size && size - at >= sizeof note && !elf->build_id;) {
        memcpy(&note, part + at, sizeof note);
        size_t name = at + sizeof note, desc = name + (note.n_namesz + 3UL) / 4 * 4;
        if (desc > size || note.n_descsz > size - desc)
            return;
        if (note.n_type == NT_GNU_BUILD_ID && note.n_namesz == 4 &&
            memcmp(part + name, "GNU", 4) == 0) {
            elf->build_id = xcalloc(1, note.n_descsz * 2UL + 1);
            for (size_t b = 0; b < note.n_descsz; b++)
                snprintf(elf->build_id + 2 * b, 3, "%02x", part[desc + b] & 0xffU);
        }
        at = desc + (note.n_descsz + 3UL) / 4 * 4;
    }
}

static void read_segment(int fd, const segment_t *seg, size_t nseg, const segment_t *s,
                         struct elf *elf)
{
    bool of_interest =
        s->p_type == PT_INTERP || s->p_type == PT_DYNAMIC || s->p_type == PT_NOTE;
    if (!of_interest || s->p_filesz > PART_MAX)
        return;
    OWNED char *part = read_part(fd, s->p_offset, s->p_filesz);
    if (part && s->p_type == PT_INTERP && !elf->interpreter)
        elf->interpreter = xstrdup(part);
    else if (part && s->p_type == PT_DYNAMIC && !elf->strings)
        read_dynamic(fd, seg, nseg, part, s->p_filesz, elf);
    else if (part && s->p_type == PT_NOTE)
        read_notes(part, s->p_filesz, elf);
}

int elf_read(const char *path, struct elf *elf)
{
    head_t head;
    OWNED segment_t *seg = NULL;
    *elf = (struct elf){0};
    SCOPED(close_fd) int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd >= 0 && pread(fd, &head, sizeof head, 0) == (ssize_t)sizeof head &&
        is_ours(&head))
        seg = read_part(fd, head.e_phoff, head.e_phnum * sizeof *seg);
    for (size_t i = 0; seg && i < head.e_phnum; i++)
        read_segment(fd, seg, head.e_phnum, &seg[i], elf);
    return seg ? 0 : -1;
}

void elf_finish(struct elf *elf)
{
    strv_finish(&elf->needs);
    free(elf->runpath);
    free(elf->interpreter);
    free(elf->strings);
    free(elf->build_id);
    *elf = (struct elf){0};
}

/* Linkers keep one string for two names if one ends in the other. */
bool elf_names(const struct elf *elf, const char *symbol)
{
    return elf->strings &&
           memmem(elf->strings, elf->nstrings, symbol, strlen(symbol) + 1) != NULL;
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

char *elf_find(const char *path, const struct elf *elf, const char *library_path,
               const char *name)
{
    static const char system[] = "/lib/" MULTIARCH ":/usr/lib/" MULTIARCH
                                 ":/lib64:/usr/lib64:/lib:/usr/lib:/usr/local/lib";
    const char *lists[] = {elf->runpath, library_path, system};
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
