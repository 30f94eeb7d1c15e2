/* tests/worker/cuda/emu_check.cc - see emu_check.h: what is remembered of each byte */
#include "tests/worker/cuda/emu_check.h"
#include "tests/worker/cuda/emu_impl.h"

#include <algorithm>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <dlfcn.h>
#include <link.h>
#include <set>
#include <sys/mman.h>
#include <unordered_map>

using namespace emu;

struct kernel_at *emu::kernel;

/* ---- faults ---- */

static std::vector<std::string> *collected;
static std::set<const void *> told;

void emu_collect(std::vector<std::string> *faults)
{
    collected = faults;
    told.clear();
}

/* Where in which object, for addr2line -e. */
static std::string place_in_code(const void *at)
{
    Dl_info info;
    char text[64] = "";
    if (!at || !dladdr(at, &info))
        return "";
    snprintf(text, sizeof text, "+%#zx]",
             size_t(static_cast<const char *>(at) -
                    static_cast<const char *>(info.dli_fbase)));
    return std::string(" [") + info.dli_fname + text;
}

void emu::fault(const void *from, const char *format, ...)
{
    char what[400], who[160] = "a library or a copy";
    va_list args;
    if (collected && !told.insert(from).second)
        return;
    va_start(args, format);
    vsnprintf(what, sizeof what, format, args);
    va_end(args);
    if (kernel)
        snprintf(who, sizeof who, "kernel %s, block %u, thread %u", kernel->name,
                 kernel->block, kernel->thread);
    std::string line = std::string(who) + ": " + what + place_in_code(from);
    if (collected) {
        collected->push_back(line);
        return;
    }
    fprintf(stderr, "emulation: %s\n", line.c_str());
    abort();
}

/* ---- memory ---- */

struct cell {
    uint32_t w_work, w_block;
    uint16_t w_phase, w_thread;
    uint32_t r_work, r_block;
    uint16_t r_phase, r_thread;
    uint32_t r_other; /* another work that has read it */
    bool written, atomic, r_threads, r_blocks;
};

/* One cell for each 1 << grain bytes: as many as the smallest access had. */
struct page {
    cell *cells;
    uint16_t valid; /* bytes from its start that may be touched */
    uint8_t grain;
};
enum { LARGEST_GRAIN = 3 };

static page *device_pages; /* of the devices' addresses; unused ones are not allocated */
static std::unordered_map<uintptr_t, page> shared_pages;

static page *page_at(const void *p)
{
    if (!device_pages)
        device_pages = static_cast<page *>(mmap(
            nullptr, DEVICES * RESERVED / PAGE * sizeof(page), PROT_READ | PROT_WRITE,
            MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
    return &device_pages[arena_offset(p) / PAGE];
}

void emu::allocated(const void *p, size_t bytes)
{
    for (page *of = page_at(p); bytes > 0; of++) {
        of->valid = uint16_t(std::min(bytes, PAGE));
        bytes -= of->valid;
    }
}

void emu::freed(const void *p, size_t bytes)
{
    page *of = page_at(p);
    for (size_t n = (bytes + PAGE - 1) / PAGE; n > 0; n--, of++) {
        free(of->cells);
        *of = {};
    }
}

static void refine(page *p, unsigned grain)
{
    size_t n = PAGE >> grain;
    cell *fine = static_cast<cell *>(calloc(n, sizeof *fine));
    for (size_t i = 0; p->cells && i < n; i++)
        fine[i] = p->cells[i >> (p->grain - grain)];
    free(p->cells);
    p->cells = fine;
    p->grain = uint8_t(grain);
}

/* ---- the rules ---- */

static bool ordered(uint32_t w)
{
    static uint32_t last, last_of; /* works that were asked about */
    if (last_of != at_work->id || last != w) {
        if (!at_work->before.has(w))
            return false;
        last_of = at_work->id;
        last = w;
    }
    return true;
}

static bool written_before(const cell &c, const kernel_at &k)
{
    if (c.w_work != at_work->id)
        return c.w_work == 0 || ordered(c.w_work);
    return c.w_block == k.block &&
           (c.w_thread == k.thread || c.w_phase < uint16_t(k.phase));
}

static bool read_before(const cell &c, const kernel_at &k)
{
    if (c.r_other && !ordered(c.r_other))
        return false;
    if (c.r_work != at_work->id)
        return c.r_work == 0 || ordered(c.r_work);
    if (c.r_blocks || c.r_block != k.block)
        return false;
    return c.r_phase < uint16_t(k.phase) || (!c.r_threads && c.r_thread == k.thread);
}

static void note_read(cell *c, const kernel_at &k)
{
    if (c->r_work != at_work->id) {
        c->r_other = c->r_work && !ordered(c->r_work) ? c->r_work : c->r_other;
        c->r_blocks = c->r_threads = false;
    } else {
        c->r_blocks |= c->r_block != k.block;
        bool same = c->r_block == k.block && c->r_phase == uint16_t(k.phase);
        c->r_threads = same && (c->r_threads || c->r_thread != k.thread);
    }
    c->r_work = at_work->id;
    c->r_block = k.block;
    c->r_phase = uint16_t(k.phase);
    c->r_thread = uint16_t(k.thread);
}

static void note_write(cell *c, const kernel_at &k, bool atomic)
{
    c->w_work = at_work->id;
    c->w_block = k.block;
    c->w_phase = uint16_t(k.phase);
    c->w_thread = uint16_t(k.thread);
    c->written = true;
    c->atomic = atomic;
}

static void race(const cell &c, bool written, unsigned access, const char *where,
                 const void *from)
{
    const char *does = access & EMU_WRITE ? "writes" : "reads";
    const char *did = written ? "written" : "read";
    uint32_t other = written ? c.w_work : c.r_work;
    if (!written && c.r_other && !ordered(c.r_other))
        other = c.r_other;
    if (other != at_work->id)
        fault(from, "race: %s %s that another work has %s, in no order with this one",
              does, where, did);
    else if (!written && c.r_threads)
        fault(from,
              "race: %s %s that threads of block %u have read, with no barrier between",
              does, where, c.r_block);
    else
        fault(from,
              "race: %s %s that block %u, thread %u has %s, with no barrier between",
              does, where, written ? c.w_block : c.r_block,
              written ? c.w_thread : c.r_thread, did);
}

static void check(cell *c, bool shared, unsigned access, const void *from)
{
    static const kernel_at none = {};
    const kernel_at &k = kernel ? *kernel : none;
    const char *where = shared ? "shared memory" : "memory";
    if (shared && (c->w_work != at_work->id || c->w_block != k.block))
        c->written = false;
    if (shared && (c->r_work != at_work->id || c->r_block != k.block))
        c->r_work = c->r_other = 0;
    if (shared && !c->written)
        c->w_work = 0;
    bool both_atomic = access & EMU_ATOMIC && c->atomic;
    if (!both_atomic && !written_before(*c, k))
        race(*c, true, access, where, from);
    if (access & EMU_WRITE && !read_before(*c, k))
        race(*c, false, access, where, from);
    if (access & EMU_READ && !(access & EMU_COPY) && !c->written)
        fault(from, "reads %s that was not written", where);
    if (access & EMU_READ)
        note_read(c, k);
    if (access & EMU_WRITE)
        note_write(c, k, access & EMU_ATOMIC);
}

static void look_at_page(page *p, size_t at, size_t bytes, bool shared, unsigned access,
                         const void *from)
{
    unsigned grain = at % PAGE | bytes ? unsigned(__builtin_ctzl(at | bytes)) : 0;
    grain = std::min(grain, unsigned(LARGEST_GRAIN));
    if (!p->cells || grain < p->grain)
        refine(p, p->cells ? std::min(grain, unsigned(p->grain)) : grain);
    for (size_t i = at >> p->grain; i < at + bytes >> p->grain; i++)
        check(&p->cells[i], shared, access, from);
}

/* ---- whose memory ---- */

/* Memory that is written to in the object that the kernel is in: its shared arrays. */
struct object {
    const char *code;
    std::vector<std::pair<const char *, size_t>> code_at, data_at;
};

static int find_object(struct dl_phdr_info *info, size_t, void *into)
{
    object o, *wanted = static_cast<object *>(into);
    bool found = false;
    for (int i = 0; i < info->dlpi_phnum; i++) {
        const ElfW(Phdr) &h = info->dlpi_phdr[i];
        const char *at = reinterpret_cast<const char *>(info->dlpi_addr + h.p_vaddr);
        if (h.p_type != PT_LOAD)
            continue;
        if (h.p_flags & PF_W)
            o.data_at.push_back({at, h.p_memsz});
        if (h.p_flags & PF_X)
            o.code_at.push_back({at, h.p_memsz});
        found |= wanted->code >= at && wanted->code < at + h.p_memsz;
    }
    if (found) {
        wanted->code_at = o.code_at;
        wanted->data_at = o.data_at;
    }
    return found;
}

static bool is_shared(const char *p)
{
    static object last;
    auto within = [](const decltype(last.data_at) &ranges, const char *at) {
        for (auto &r : ranges)
            if (at >= r.first && at < r.first + r.second)
                return true;
        return false;
    };
    const char *code = static_cast<const char *>(kernel->code);
    if (!within(last.code_at, code)) {
        last = {code, {}, {}};
        dl_iterate_phdr(find_object, &last);
    }
    return within(last.data_at, p);
}

/* Parameters, the thread's own stack, which number it has: nothing can be wrong there. */
static bool own(const char *p)
{
    return (p >= kernel->stack && p < kernel->stack + kernel->stack_bytes) ||
           (p >= kernel->parameters &&
            p < kernel->parameters + kernel->parameter_bytes) ||
           (p >= reinterpret_cast<const char *>(emu_indices) &&
            p < reinterpret_cast<const char *>(emu_indices + EMU_INDICES));
}

static void look_at_device(const char *p, size_t bytes, unsigned access, const void *from)
{
    while (bytes > 0) {
        size_t at = arena_offset(p) % PAGE, n = std::min(bytes, PAGE - at);
        page *of = page_at(p);
        if (at + n > of->valid) {
            fault(from, "%s %zu bytes at %p, outside of what is allocated",
                  access & EMU_READ ? "reads" : "writes", bytes,
                  static_cast<const void *>(p));
            return;
        }
        look_at_page(of, at, n, false, access, from);
        p += n;
        bytes -= n;
    }
}

void emu_look(const void *at, size_t bytes, unsigned access, const void *from)
{
    const char *p = static_cast<const char *>(at);
    if (!at_work || bytes == 0 || (kernel && own(p)))
        return;
    if (on_device(p)) {
        look_at_device(p, bytes, access, from);
        return;
    }
    if (!kernel) /* the host's, of a library */
        return;
    if (!is_shared(p)) {
        fault(from, "touches %p, which is the host's or another thread's", at);
        return;
    }
    while (bytes > 0) {
        size_t in = uintptr_t(p) % PAGE, n = std::min(bytes, PAGE - in);
        look_at_page(&shared_pages[uintptr_t(p) / PAGE], in, n, true, access, from);
        p += n;
        bytes -= n;
    }
}
