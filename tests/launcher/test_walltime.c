#include "tests/support/suite.h"

#include "common/mem.h"
#include "launcher/cli/walltime.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

static const struct {
    const char *text;
    int64_t seconds;                      /* 0: an error */
    const char *slurm, *sge, *lsf, *said; /* or the error, in `slurm` */
} times[] = {
    {"90m", 5400, "01:30:00", "01:30:00", "01:30", "1h30m"},
    {"2h", 7200, "02:00:00", "02:00:00", "02:00", "2h"},
    {"1.5h", 5400, "01:30:00", "01:30:00", "01:30", "1h30m"},
    {"1d12h", 129600, "1-12:00:00", "36:00:00", "36:00", "1d12h"},
    {"36:00:00", 129600, "1-12:00:00", "36:00:00", "36:00", "1d12h"},
    {"1-12:00:00", 129600, "1-12:00:00", "36:00:00", "36:00", "1d12h"},
    {"1h30min", 5400, "01:30:00", "01:30:00", "01:30", "1h30m"},
    {"61s", 61, "00:01:01", "00:01:01", "00:02", "1m1s"},
    {"100h", 360000, "4-04:00:00", "100:00:00", "100:00", "4d4h"},
    {"120", 0,
     "'120' is minutes for Slurm, LSF and Flux, seconds for Grid Engine and PBS; "
     "write 120m, 120s or 120h"},
    {"2:00", 0,
     "'2:00' is hours and minutes for LSF, minutes and seconds for the others; "
     "write 2:00:00 or 00:2:00"},
    {"", 0, "is not a duration"},
    {"2hours", 0,
     "'2hours' is not a duration: write 90s, 5m, 1h30m, 250ms, 1d12h or "
     "36:00:00"},
    {"2m1h", 0, "is not a duration"},
    {"-2h", 0, "is not a duration"},
    {"1:60:00", 0, "is not a duration"},
    {"1-24:00:00", 0, "is not a duration"},
    {"0x2h", 0, "is not a duration"},
    {"1e3h", 0, "is not a duration"},
    {"250ms", 0, "is not between 1s and"},
    {"0h", 0, "is not between 1s and"},
    {"99999999d", 0, "is not between 1s and"},
};

LOOP_TEST(times_have_units, ARRAY_LEN(times))
{
    struct ddp_err err = {""};
    int64_t s = 0;
    int rc = walltime_parse(times[_i].text, &s, &err);
    if (times[_i].seconds == 0) {
        ck_assert_msg(rc == -1 && strstr(err.text, times[_i].slurm), "%s: %s",
                      times[_i].text, err.text);
        return;
    }
    ck_assert_msg(rc == 0 && s == times[_i].seconds, "%s: %s, %" PRId64, times[_i].text,
                  err.text, s);
    char said[40];
    char *slurm = walltime_text(SCHED_SLURM, s), *sge = walltime_text(SCHED_SGE, s),
         *lsf = walltime_text(SCHED_LSF, s);
    walltime_say(s, said, sizeof said);
    ck_assert_str_eq(slurm, times[_i].slurm);
    ck_assert_str_eq(sge, times[_i].sge);
    ck_assert_str_eq(lsf, times[_i].lsf);
    ck_assert_str_eq(said, times[_i].said);
    free(slurm);
    free(sge);
    free(lsf);
}

static const struct {
    const char *text;
    int64_t mb;
} sizes[] = {
    {"512M", 512},  {"64G", 65536}, {"64GB", 65536}, {"64GiB", 65536}, {"1.5T", 1572864},
    {"64g", 65536}, {"64", -1},     {"", -1},        {"G", -1},        {"64K", -1},
    {"64Gigs", -1}, {"-64G", -1},   {"0G", -1},      {"64 G", -1},
};

LOOP_TEST(sizes_have_units, ARRAY_LEN(sizes))
{
    struct ddp_err err = {""};
    int64_t mb = -1;
    int rc = memory_parse(sizes[_i].text, &mb, &err);
    ck_assert_msg(rc == (sizes[_i].mb < 0 ? -1 : 0) && mb == sizes[_i].mb,
                  "%s: %" PRId64 " %s", sizes[_i].text, mb, err.text);
}
