/* bench/spawnloop.c - the floor under every launcher: spawn N, wait for N
 *
 *     spawnloop N program [argument...]
 */
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>

extern char **environ;

int main(int argc, char **argv)
{
    int n = argc > 2 ? atoi(argv[1]) : 0, failed = 0;
    for (int i = 0; i < n; i++) {
        pid_t pid;
        if (posix_spawn(&pid, argv[2], NULL, NULL, argv + 2, environ) != 0) {
            perror(argv[2]);
            return 1;
        }
    }
    for (int i = 0; i < n; i++) {
        int status;
        if (wait(&status) < 0 || status != 0)
            failed = 1;
    }
    return n == 0 || failed;
}
