/* tests/worker/cuda/emu_nvtx.cc - see emu.h: a profiler that NVTX finds by
 * NVTX_INJECTION64_PATH. It writes the ranges to the file EMU_RANGES, a line each,
 * indented by those around it. */
#include <cstdio>
#include <cstdlib>
#include <nvtx3/nvToolsExt.h>

static FILE *seen;
static int depth;

static int NVTX_API push(const char *what)
{
    fprintf(seen, "%*s%s\n", depth, "", what);
    return depth++;
}

static int NVTX_API pop()
{
    return --depth;
}

extern "C" __attribute__((visibility("default"))) int
InitializeInjectionNvtx2(NvtxGetExportTableFunc_t get_table)
{
    const char *path = getenv("EMU_RANGES");
    auto calls =
        static_cast<const NvtxExportTableCallbacks *>(get_table(NVTX_ETID_CALLBACKS));
    NvtxFunctionTable table;
    unsigned size = 0;
    seen = path ? fopen(path, "w") : nullptr;
    if (!seen || !calls ||
        !calls->GetModuleFunctionTable(NVTX_CB_MODULE_CORE, &table, &size) ||
        size <= NVTX_CBID_CORE_RangePop)
        return 0;
    *table[NVTX_CBID_CORE_RangePushA] = reinterpret_cast<NvtxFunctionPointer>(push);
    *table[NVTX_CBID_CORE_RangePop] = reinterpret_cast<NvtxFunctionPointer>(pop);
    return 1;
}
