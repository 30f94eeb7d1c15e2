/* launcher/plugins/preflight/finding.c - see check.h */
#include "launcher/plugins/preflight/check.h"

#include "common/mem.h"

static void submit(const struct check_ctx *ctx, struct msg_finding f)
{
    f.check = ctx->check;
    ctx->found(&f, ctx->arg);
    msg_finding_finish(&f);
}

void found_value(const struct check_ctx *ctx, const char *item, const char *key,
                 const char *value, ...)
{
    va_list ap;
    struct msg_finding f = {.item = xstrdup(item), .key = xstrdup(key)};
    va_start(ap, value);
    f.value = xvasprintf(value, ap);
    va_end(ap);
    submit(ctx, f);
}

void found_number(const struct check_ctx *ctx, int64_t number)
{
    submit(ctx, (struct msg_finding){.number = number});
}

void found_problem(const struct check_ctx *ctx, const char *problem, ...)
{
    va_list ap;
    struct msg_finding f = {0};
    va_start(ap, problem);
    f.problem = xvasprintf(problem, ap);
    va_end(ap);
    submit(ctx, f);
}

void found_remark(const struct check_ctx *ctx, const char *remark, ...)
{
    va_list ap;
    struct msg_finding f = {.remark = true};
    va_start(ap, remark);
    f.problem = xvasprintf(remark, ap);
    va_end(ap);
    submit(ctx, f);
}
