/* launcher/plugins/observe/view/clients.c - does a client watch, has it seen the end? */
#include "launcher/plugins/observe/view/view.h"

#include "common/duration.h"

#include <event2/bufferevent.h>

/* ms: a client without requests for so long has left; from when one has seen the job's
 * end to ours, for it to get the last status */
enum { WATCH_MS = 5000, SEEN_MS = 500 };

double view_seconds(const struct view *v)
{
    return (double)(now_ms() - v->created_ms) / 1e3;
}

void view_ask(struct view *v)
{
    const char *calls = view_watched(v) ? "true" : "false";
    if (v->up)
        evbuffer_add_printf(bufferevent_get_output(v->up),
                            "{\"do\":\"status\",\"calls\":%s}\n", calls);
}

bool view_watched(const struct view *v)
{
    return now_ms() - v->asked_ms < WATCH_MS;
}

void view_asked(struct view *v)
{
    bool watched = view_watched(v);
    v->asked_ms = now_ms();
    if (!watched)
        view_ask(v);
}

void view_done(struct view *v)
{
    if (v->ended && !v->end_seen) {
        v->end_seen = true;
        event_add(v->end, &(struct timeval){0, SEEN_MS * 1000});
    }
}
