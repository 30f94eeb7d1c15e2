/* tests/launcher/io/output_fixture.h - what the tests of launcher/io/output.h begin with
 *
 * Our stdout and stderr are files, pipes or a terminal made by each test; Check runs
 * every test in a process of its own, so that dup2() over them disturbs nobody.
 */
#ifndef TESTS_LAUNCHER_IO_OUTPUT_FIXTURE_H
#define TESTS_LAUNCHER_IO_OUTPUT_FIXTURE_H

#include "tests/support/suite.h"

#include "launcher/io/output.h"

extern struct loop *loop;
extern struct output *output; /* of make(); destroyed behind the test */
extern struct ddp_err err;
extern int rooms; /* how often it has said that there is room again */
extern bool stuck; /* nobody reads: turn() does not wait for what is written */

void output_setup(void);
void output_teardown(void);

void turn(void); /* of the loop */

/* Ranks 0 and 1 are on node01, the others on node02, if `hosts`. NULL: `err` says why. */
struct output *make(const struct opts *opts, int nranks, bool hosts);

void feed(int rank, enum out_stream stream, const char *text);

#endif
