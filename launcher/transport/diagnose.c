/* launcher/transport/diagnose.c - see diagnose.h */
#include "launcher/transport/diagnose.h"

#include "common/signame.h"
#include "launcher/transport/program.h"

#include <stdio.h>
#include <string.h>
#include <sys/wait.h>

void last_output_line(const char *output, const char *host, char *out, size_t size)
{
    static const char agent[] = "ddprun-agent: ";
    const char *end = output + strlen(output);
    while (end > output && strchr("\n\r \t", end[-1]))
        end--;
    const char *start = end;
    while (start > output && start[-1] != '\n')
        start--;
    size_t n = host ? strlen(host) : 0;
    if (strncmp(start, agent, strlen(agent)) == 0) {
        const char *rest = start + strlen(agent);
        if (host && strncmp(rest, host, n) == 0 && strncmp(rest + n, ": ", 2) == 0)
            start = rest + n + 2;
    }
    snprintf(out, size, "%.*s", (int)(end - start), start);
}

const struct start_failure *diagnose_failure(const struct start_failure *reasons,
                                             const char *output)
{
    while (reasons->words && !strstr(output, reasons->words))
        reasons++;
    return reasons->words ? reasons : NULL;
}

bool diagnose_no_agent(const char *agent, int code, char *out, size_t size)
{
    if (code != EXIT_NOT_FOUND && code != EXIT_NOT_EXECUTABLE)
        return false;
    snprintf(out, size,
             "the agent '%s' %s there; install ddprun in the same place, or name its "
             "agent by --agent",
             agent, code == EXIT_NOT_FOUND ? "is not" : "cannot be run");
    return true;
}

void diagnose_otherwise(const struct host *host, const char *agent, const char *program,
                        const char *output, int status, struct diagnosis *d)
{
    char why[400];
    int code = WIFEXITED(status) ? WEXITSTATUS(status) : 0;
    last_output_line(output, host->name, why, sizeof why);
    if (strstr(why, ": Command not found.")) /* csh, with status 1 */
        code = EXIT_NOT_FOUND;
    if (WIFSIGNALED(status))
        snprintf(why, sizeof why, "%s died of %s", program,
                 signal_name(WTERMSIG(status)));
    else if (!diagnose_no_agent(agent, code, why, sizeof why) && !why[0])
        snprintf(why, sizeof why, "%s ended with status %d and no word", program, code);
    snprintf(d->text, sizeof d->text, "%s: %s", host->name, why);
}
