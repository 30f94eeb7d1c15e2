/* common/pmi_client.h - a client of PMI-1: lines of key=value on the descriptor PMI_FD
 *
 *     cmd=init pmi_version=1 pmi_subversion=1     cmd=response_to_init ... rc=0
 *     cmd=get_my_kvsname                          cmd=my_kvsname kvsname=K
 *     cmd=put kvsname=K key=A value=B             cmd=put_result rc=0
 *     cmd=barrier_in                              cmd=barrier_out, when all are in
 *     cmd=get kvsname=K key=A                     cmd=get_result rc=0 ... value=B
 *     cmd=finalize                                cmd=finalize_ack
 *
 * A process that closes the descriptor between init and finalize has crashed, to Hydra;
 * one that has sent finalize cannot begin again.
 */
#ifndef COMMON_PMI_CLIENT_H
#define COMMON_PMI_CLIENT_H

#include "include/ddprun/err.h"

#include <stdint.h>

enum { PMI_CLIENT_LINE = 2048 };

/* Send a request, a line with its newline, and read its reply, which must begin with
 * "cmd=REPLY" and must not have another rc than 0, into `line`, without the newline. Time
 * in which this process is stopped (common/limit.h) moves the deadline. */
int pmi_client_ask(int fd, const char *request, const char *reply,
                   char line[PMI_CLIENT_LINE], int64_t *deadline_ms, struct ddp_err *err);

/* Send init, and get the name of the key-value space into `name`. */
int pmi_client_begin(int fd, char name[PMI_CLIENT_LINE], int64_t *deadline_ms,
                     struct ddp_err *err);

#endif
