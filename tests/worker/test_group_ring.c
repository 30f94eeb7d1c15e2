/* The ring of messages between two ranks of a host: what is written comes out, in order,
 * however often it goes around; and no more is written than there is room for. */
#include "tests/support/suite.h"

#include "common/mem.h"
#include "worker/group/ring.h"

#include <stdlib.h>

static struct ring *ring;
static struct ring_out out;
static struct ring_in in;
static unsigned written, read_;
static char data[RING_PIECE], came[RING_PIECE];

static void begin(void)
{
    ring = aligned_alloc(RING_LINE, sizeof *ring);
    ck_assert_ptr_nonnull(ring);
    memset(ring, 0, sizeof *ring);
    out = ring_writer(ring);
    in = ring_reader(ring);
    written = read_ = 0;
}

static void end(void)
{
    free(ring);
}

/* Of every size in turn, the numbers of `sizes` among them. */
static size_t size_of(unsigned k)
{
    static const size_t sizes[] = {0,         1, 40, 41, 64, 65, 1000, RING_PIECE - 1,
                                   RING_PIECE};
    return k % 3 == 0 ? sizes[k / 3 % ARRAY_LEN(sizes)] : k * 37u % 300u;
}

static bool write_one(size_t size)
{
    if (!ring_has_room(&out, size))
        return false;
    memset(data, (int)(written % 251), size);
    ring_write(&out, written, written + 1, size + 7, data, size);
    written++;
    return true;
}

static bool read_one(size_t size)
{
    const struct ring_slot *slot = ring_peek(&in);
    if (!slot)
        return false;
    ck_assert_uint_eq(slot->tag, read_);
    ck_assert_uint_eq(slot->what, read_ + 1);
    ck_assert_uint_eq(slot->size, size);
    ck_assert_uint_eq(slot->bytes, size + 7);
    ring_take(&in, slot, came);
    memset(data, (int)(read_ % 251), size);
    ck_assert_mem_eq(came, data, size);
    read_++;
    return true;
}

FIXTURE(begin, end)

TEST(all_sizes_go_around)
{
    for (unsigned turn = 0; turn < 40; turn++) {
        while (write_one(size_of(written)))
            ;
        ck_assert_uint_gt(written, read_);
        unsigned some = turn % 2 ? written : read_ + (written - read_) / 2;
        while (read_ < some)
            ck_assert(read_one(size_of(read_)));
    }
    while (read_ < written)
        ck_assert(read_one(size_of(read_)));
    ck_assert(!read_one(0));
}

static const struct {
    size_t size;
    unsigned fit;
} full[] = {{0, RING_SLOTS},
            {RING_INLINE, RING_SLOTS},
            {RING_INLINE + 1, RING_SLOTS},
            {1024, RING_ROOM / 1024},
            {RING_PIECE, RING_ROOM / RING_PIECE},
            {RING_PIECE - RING_LINE, RING_ROOM / (RING_PIECE - RING_LINE)}};

/* A reader that takes all that it sees always makes room for one more, of any size. */
LOOP_TEST(a_full_ring_takes_more_when_read, ARRAY_LEN(full))
{
    for (unsigned lap = 0; lap < 5; lap++) {
        unsigned before = written;
        while (write_one(full[_i].size))
            ;
        ck_assert_uint_le(written - before, full[_i].fit);
        if (lap == 0)
            ck_assert_uint_eq(written, full[_i].fit);
        while (read_one(full[_i].size))
            ;
        ck_assert_uint_eq(read_, written);
        ck_assert(ring_has_room(&out, RING_PIECE));
    }
}
