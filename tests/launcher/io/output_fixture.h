/* tests/launcher/io/output_fixture.h - fixture of the tests of launcher/io/output.h
 *
 * Each test makes files, pipes or a terminal its stdout and stderr by dup2(): Check runs
 * every test in its own process.
 */
#ifndef TESTS_LAUNCHER_IO_OUTPUT_FIXTURE_H
#define TESTS_LAUNCHER_IO_OUTPUT_FIXTURE_H

#include "tests/support/suite.h"

#include "launcher/io/output.h"

extern struct loop *loop;
extern struct output *output; /* of make(); destroyed after the test */
extern struct ddp_err err;
extern const char *last_host; /* of rank 2 and above */
extern const struct output_hosts hosts_of_ranks;
extern int drains;       /* number of reports that the output has drained, */
extern int left, failed; /* that the reader of stdout has left, that it failed */
extern bool stuck;       /* there is no reader: turn() does not wait for writes */

void output_setup(void);
void output_teardown(void);

void turn(void); /* one iteration of the loop */

/* Ranks 0 and 1 are on node01, the others on node02, if `hosts`. NULL with `err`. */
struct output *make(const struct opts *opts, int nranks, bool hosts);

void feed(int rank, enum out_stream stream, const char *text);

#endif
