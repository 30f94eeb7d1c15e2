/* tests/worker/cuda/emu_impl.h - see emu.h: what the files of the runtime's stand-in
 * share
 *
 * emu_devices.cc gives it; emu_streams.cc puts work in order and has the recordings,
 * emu_launch.cc runs kernels.
 */
#ifndef EMU_IMPL_H
#define EMU_IMPL_H

#include "tests/worker/cuda/emu.h"

/* Hidden: none of these names may take the place of one of the program under test. */
#pragma GCC visibility push(hidden)

namespace emu {
enum { DEVICES = 16 };

/* A number of the environment; nothing there: `otherwise`. */
size_t env_number(const char *name, size_t otherwise);

/* Recordings under way: nothing is allocated, or waited for, meanwhile. */
extern int captures;

/* Whose memory it is; -1: the host's. */
int device_of(const void *p);

/* May work on this device touch what lies there? */
bool reaches(int device, const void *p);
/* Bits: the device, and those whose memory it has been told that it may use. */
unsigned reachable(int device);

/* From now on only the memory of these devices can be touched (bits). */
void map_only(unsigned devices);

/* While one lives, what work maps stays mapped. */
struct device_work {
    device_work();
    ~device_work();
};

/* What cudaGetLastError() will say. */
void failed(cudaError_t rc);
} // namespace emu

#pragma GCC visibility pop

#endif
