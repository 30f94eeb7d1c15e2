/* launcher/plugins/diagnose/report_on.c - see report_on.h */
#include "launcher/plugins/diagnose/report_on.h"

#include "common/duration.h"
#include "common/err.h"
#include "launcher/control/client.h"

#include <stdio.h>
#include <unistd.h>

enum { REPORT_MS = 40000 };

int report_on(const char *job, struct ddp_err *err)
{
    int fd = control_connect(job, err);
    if (fd < 0)
        return -1;
    json_t *request = json_pack("{s:s}", "do", "report");
    json_t *answer = control_ask(fd, request, now_ms() + REPORT_MS, err);
    json_decref(request);
    close(fd);
    if (!answer)
        return -1;
    const char *text = json_string_value(json_object_get(answer, "text"));
    int rc = !text || fputs(text, stdout) < 0 || fflush(stdout) != 0
                 ? err_errno(err, "cannot write the report")
                 : 0;
    json_decref(answer);
    return rc;
}
