/* tests/worker/cuda/emu_order.cc - see emu_impl.h: which works are over before which
 * begin
 */
#include "tests/worker/cuda/emu_impl.h"

using namespace emu;

struct work *emu::at_work;
past emu::host_past;
static uint32_t works;

bool past::has(uint32_t id) const
{
    size_t bit = id - first;
    return id < first || (bit / 64 < bits.size() && bits[bit / 64] >> bit % 64 & 1);
}

void past::add(uint32_t id)
{
    size_t bit = id - first;
    if (id < first)
        return;
    if (bit / 64 >= bits.size())
        bits.resize(bit / 64 + 1);
    bits[bit / 64] |= uint64_t(1) << bit % 64;
    close();
}

/* What is whole needs no bits. */
void past::close()
{
    size_t whole = 0;
    while (whole < bits.size() && ~bits[whole] == 0)
        whole++;
    bits.erase(bits.begin(), bits.begin() + ptrdiff_t(whole));
    first += uint32_t(whole * 64);
}

void past::join(const past &other)
{
    past both = first < other.first ? other : *this;
    const past &earlier = first < other.first ? *this : other;
    size_t skip = (both.first - earlier.first) / 64;
    for (size_t i = skip; i < earlier.bits.size(); i++) {
        if (i - skip >= both.bits.size())
            both.bits.resize(i - skip + 1);
        both.bits[i - skip] |= earlier.bits[i];
    }
    both.close();
    *this = both;
}

void work::begin()
{
    if (id == 0)
        id = ++works;
}

host_work::host_work()
{
    of.before = host_past;
    of.begin();
    at_work = &of;
}

host_work::~host_work()
{
    at_work = nullptr;
    host_past.add(of.id);
}
