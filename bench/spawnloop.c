/* bench/spawnloop.c - the floor under every launcher: spawn N, wait for N
 *
 *     spawnloop N program [argument...]
 *
 * When one fails, it terminates the others, reaps all, and prints a line.
 */
#include <signal.h>
#include <spawn.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>

extern char **environ;

int main(int argc, char **argv)
{
    int n = argc > 2 ? atoi(argv[1]) : 0;
    pid_t *pids = calloc((size_t)n + 1, sizeof *pids), pid;
    bool failed = false;
    for (int i = 0; i < n; i++) {
        if (!pids || posix_spawn(&pids[i], argv[2], NULL, NULL, argv + 2, environ) != 0) {
            perror(argv[2]);
            return 1;
        }
    }
    for (int status; (pid = wait(&status)) > 0;) {
        bool first = status != 0 && !failed;
        failed |= first;
        for (int i = 0; i < n; i++) {
            if (pids[i] == pid)
                pids[i] = 0;
            else if (first && pids[i])
                kill(pids[i], SIGTERM);
        }
    }
    if (failed)
        fputs("one has failed\n", stderr);
    free(pids);
    return n == 0 || failed;
}
